"""Reports on how far two implementations are apart: one comparison a row, as text, Markdown and picture.

Unusual: nothing here knows the other implementation; anything that NumPy can read is an array.
"""
