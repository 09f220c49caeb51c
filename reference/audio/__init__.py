"""Waveforms to features and back: log-mel in, inverse STFT out, resampling between rates."""
