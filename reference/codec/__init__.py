"""Network 4: the neural codec, waveform to codes and back."""
