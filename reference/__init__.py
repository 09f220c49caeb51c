"""VoiceChat in plain PyTorch float32: no cache, whole sequences, one equation a line.

It imports only configuration, conventions, errors and the table of tensor names from `voicechat_mlx`: every equation is
written a second time here, so that the two can disagree.
"""
