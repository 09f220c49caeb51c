"""Band-limited resampling, done by soxr through librosa."""

from __future__ import annotations

import librosa
import numpy as np
import torch
from torch import Tensor


def resample(samples: Tensor, source_rate: int, target_rate: int) -> Tensor:
    """(n,) at `source_rate` Hz → (ceil(n · target / source),) at `target_rate` Hz, float32."""
    if source_rate == target_rate:
        return samples
    resampled = librosa.resample(samples.numpy(), orig_sr=source_rate, target_sr=target_rate, res_type="soxr_hq")
    return torch.from_numpy(np.ascontiguousarray(resampled, dtype=np.float32))
