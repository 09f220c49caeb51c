"""`voicechat serve`: conversations over WebSockets in the event names of OpenAI's Realtime API. See docs/online.md.

One thread owns MLX (`worker`); the network side (`app`, `connection`) never touches it. Between them go samples one way
and session events the other. `protocol`, `messages`, `settings` and `turns` know the protocol and neither side.
"""
