"""Tools: what the prompt says about them, what the function channel says, and what is written back into it.

Pure text and ids; nothing here touches MLX.
"""
