"""Network 1: the FastConformer speech encoder and its RNNT transcript branch."""
