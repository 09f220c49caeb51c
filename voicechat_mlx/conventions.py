"""The named choices on which MLX ports and the publisher's own code differ.

Neither side is wrong: each choice changes a frame or two at an edge of the signal. They are kept in one
place so that a reader sees all of them and a test can run both. docs/conventions.md gives measured effects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from voicechat_mlx.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """One profile of edge behaviour."""

    name: str
    stft_padding: Literal["reflect", "constant"]
    """How the waveform is continued past its two ends: touches the first two and last two mel frames."""
    keeps_last_mel_frame: bool
    """True: all 1 + n // hop mel frames are speech. False: the last one is zeroed and counts as padding."""
    warmup_ends_with_eos: bool
    """Whether the last of the voice prompt's subwords is EOS instead of PAD."""
    silent_first_frame: bool
    """Position 0 has no talker step. True: its codes are the silence codes. False: zeros (an arbitrary sound)."""


MLX = Conventions(
    name="mlx", stft_padding="reflect", keeps_last_mel_frame=True, warmup_ends_with_eos=False, silent_first_frame=True
)
NEMO = Conventions(
    name="nemo",
    stft_padding="constant",
    keeps_last_mel_frame=False,
    warmup_ends_with_eos=True,
    silent_first_frame=False,
)
PROFILES = {profile.name: profile for profile in (MLX, NEMO)}


def find_conventions(name: str | Conventions) -> Conventions:
    """`"mlx"` or `"nemo"` → its `Conventions`; anything else is a ConfigError."""
    if isinstance(name, Conventions):
        return name
    if not isinstance(name, str) or name not in PROFILES:
        raise ConfigError(f"conventions {name!r} are unknown; choose one of {', '.join(sorted(PROFILES))}")
    return PROFILES[name]
