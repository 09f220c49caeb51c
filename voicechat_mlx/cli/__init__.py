"""The commands: `python -m voicechat_mlx.cli COMMAND`, also installed as `voicechat`."""
