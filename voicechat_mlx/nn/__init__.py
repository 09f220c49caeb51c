"""Blocks that two or more networks share: caches, causal convolutions, norms, attention, LSTM."""
