"""Network 2: the Nemotron-H language model."""
