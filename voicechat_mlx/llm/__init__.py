"""Network 2: Nemotron-H, the hybrid Mamba-2 / attention / MLP language model."""
