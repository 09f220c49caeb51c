"""How far MLX and the twin may differ, and why so far and no further.

None of these was fitted to what a run printed. Errors are relative: the RMS of the difference over the RMS of the twin.
"""

from __future__ import annotations

FLOAT32 = 2e-5
"""Two correct float32 programs differ by the order of their sums: about √n · 6e-8 for one sum of n terms, a few 1e-6
after 56 layers. The rest is room for another BLAS. A wrong epsilon, a shifted frame or a lost bias costs far more."""
MEL = 1e-5
"""One transform, one product, one logarithm: nothing adds up."""
BFLOAT16_WEIGHTS = 5e-3
"""Rounded weights, float32 arithmetic, on `perception.encoded`: what the specification allows against the publisher's
own bfloat16 run (8 bits, 4e-3 a rounding). Both sides here read the same rounded weights, so 1e-5 is what to expect,
and `encoder.layers.*`, where the same numbers come out, are held to FLOAT32."""
BFLOAT16_ARITHMETIC = 3e-2
"""Rounded activations, on the last layers only: each of k residual layers adds a rounding of 4e-3, independent of
the others, √k · 4e-3 ≈ 3e-2 for the 56 layers of the language model."""
AUDIO_SNR_DB = 80.0
"""Decoded audio, the same codes on both sides: 1e-4 of the signal, below what a 16-bit file of speech resolves."""
PCM_STEPS = 1.0
"""Samples of the WAV file: rounding to 2⁻¹⁵ puts each within half a step, and a value that float32 errors carry across
a rounding boundary lands on the neighbour."""
