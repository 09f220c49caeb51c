"""Network 4: the audio codec, waveform ↔ 31 codes per 80 ms."""
