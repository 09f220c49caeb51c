"""Network 1: log-mel → FastConformer → language-model width, and the RNNT transcript branch."""
