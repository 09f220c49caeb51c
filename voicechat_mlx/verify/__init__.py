"""Prove on a checkpoint that MLX computes what the PyTorch twin computes, block by block.

One block of each side is in memory at a time, so the 11B model is verified within 24 GB. Both sides get the same
input at every block; MLX also goes on with its own output, to show how errors add up. The words that are spoken are
given: what a language model would say depends on all of it at once.

Needs PyTorch, and the folder `reference/` of a source checkout, which an installed package does not have.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from voicechat_mlx.audio.wav import Samples, read_audio, sample_count
from voicechat_mlx.checkpoint import Checkpoint
from voicechat_mlx.errors import AudioError, CheckpointError, InputError
from voicechat_mlx.inspection import back_end
from voicechat_mlx.memory import require_memory
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.precision import precision
from voicechat_mlx.report.rows import Row
from voicechat_mlx.safetensors_header import TensorHeader
from voicechat_mlx.text import TextTokenizer
from voicechat_mlx.verify.tensors import Flag, flagged_tensors
from voicechat_mlx.weights import survey

if TYPE_CHECKING:
    from voicechat_mlx.verify.track import Work

WORDS = "The capital of France is Paris."
"""What is said, one token a frame, from a third of the way on."""
WORKING_ROOM = 2_000_000_000
"""Bytes beside the two blocks in memory: PyTorch and MLX themselves, activations, one tensor being unpacked."""
FEWEST_FRAMES = 3
TWIN_NEEDS = {"torch": "torch==2.13.0", "librosa": "librosa"}
"""What the twin imports → how pip calls it."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was found."""

    folder: Path
    against: Path | None
    """The twin's checkpoint, where it is another one."""
    dtype: str
    seconds: float
    """Of sound."""
    rows: tuple[Row, ...]
    flags: tuple[Flag, ...]
    back_end: str
    versions: dict[str, str]
    peak_bytes: int
    """Most memory that this process ever had."""

    @property
    def passed(self) -> bool:
        """Whether every judged row is within tolerance and no tensor is damaged."""
        return not self.flags and all(row.passed for row in self.rows)


def verify(
    source: str | os.PathLike[str] | None,
    audio: str | os.PathLike[str],
    seconds: float = 2.0,
    dtype: str = "auto",
    *,
    against: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Verification:
    """A folder, a Hub id, or None for the bundled model; `seconds` of a recording go through it.

    `against` names another checkpoint of the same model for the twin, to see what quantising or rounding the weights
    does to each layer; then nothing is judged. Raises InputError where PyTorch or the twin is missing, CheckpointError
    when a checkpoint cannot be loaded at all.
    """
    require_twin()
    checkpoint = open_sound(source)
    other = open_sound(against) if against is not None else None
    if other:
        require_same_model(checkpoint, other)
    room = largest_block(checkpoint) + WORKING_ROOM
    require_memory(room, f"verifying {checkpoint.folder} block by block", force=force)
    heard, spoken = recordings(audio, seconds, checkpoint)

    from voicechat_mlx.verify.limits import MEASURE_ONLY, limits
    from voicechat_mlx.verify.sides import Pair
    from voicechat_mlx.verify.track import Work

    total = blocks(checkpoint) + sum(map(len, checkpoint.headers.values()))
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(done, total)

    flags = flagged_tensors(checkpoint, advance)
    pair = Pair.open(checkpoint, precision(dtype), other)
    allowed = MEASURE_ONLY if other else limits(pair.mlx.language_dtype, pair.mlx.talker_dtype)
    work = Work(pair, allowed, advance)
    compare_everything(work, heard, spoken)
    return Verification(
        folder=checkpoint.folder,
        against=other.folder if other else None,
        dtype=dtype,
        seconds=len(heard) / checkpoint.config.input_sample_rate,
        rows=tuple(work.rows),
        flags=tuple(flags),
        back_end=back_end(),
        versions={name: version(name) for name in ("mlx", "torch", "numpy")} | {"python": platform.python_version()},
        peak_bytes=peak_memory(),
    )


def open_sound(source: str | os.PathLike[str] | None) -> Checkpoint:
    """A checkpoint whose tensors have their names and shapes. Raises CheckpointError."""
    checkpoint = Checkpoint.open(source)
    report = survey(VoiceChat(checkpoint.config), checkpoint.tensors(), checkpoint.config)
    if report.problems:
        raise CheckpointError(f"{checkpoint.folder} cannot be loaded, so not verified: {report.problems[0]}")
    return checkpoint


def require_same_model(checkpoint: Checkpoint, other: Checkpoint) -> None:
    """Raises CheckpointError when the two differ in more than how their weights are stored."""
    for section in ("text_config", "audio_config", "tts_config", "codec_config"):
        if getattr(checkpoint.config, section) != getattr(other.config, section):
            raise CheckpointError(
                f"{other.folder} is another model: its {section} differs; compare conversions of the same weights"
            )


def recordings(audio: str | os.PathLike[str], seconds: float, checkpoint: Checkpoint) -> tuple[Samples, Samples]:
    """The beginning of a recording, at the model's input rate and at its output rate. Raises AudioError."""
    rates = (checkpoint.config.input_sample_rate, checkpoint.config.output_sample_rate)
    heard, spoken = (read_audio(audio, rate)[: sample_count(seconds, rate)] for rate in rates)
    if len(heard) < FEWEST_FRAMES * checkpoint.config.input_samples_per_frame:
        raise AudioError(f"{seconds} seconds of {os.fspath(audio)} are too short to verify with; take at least 0.3")
    return heard, spoken


def compare_everything(work: Work, heard: Samples, spoken: Samples) -> None:
    """Samples at the input rate and the same sound at the output rate, through all four networks."""
    import torch

    from voicechat_mlx.verify.listening import compare_language, compare_perception
    from voicechat_mlx.verify.speaking import compare_decoder, compare_encoder, compare_talker

    config = work.pair.checkpoint.config
    with torch.no_grad():
        audio = compare_perception(work, heard)
        frames = audio.twin.shape[1]
        text = torch.tensor([spoken_ids(work.pair.checkpoint, frames)])
        before = torch.cat([torch.full((1, 1), config.pad_token_id), text[:, :-1]], dim=1)
        compare_language(work, audio, before, torch.full_like(text, config.pad_token_id))
        wave = np.zeros(frames * config.codec_config.samples_per_frame, np.float32)
        wave[: len(spoken)] = spoken[: len(wave)]
        codes, prompt = compare_encoder(work, torch.from_numpy(wave).unsqueeze(0))
        compare_talker(work, text[:, 1:], codes[:, : frames - 1], prompt)
        compare_decoder(work, codes)


def spoken_ids(checkpoint: Checkpoint, frames: int) -> list[int]:
    """PAD, from a third of the way on BOS and words, and EOS at the end: `frames` ids."""
    config = checkpoint.config
    begin = frames // 3
    words = [config.bos_token_id, *TextTokenizer(checkpoint.tokenizer).encode(WORDS)][: frames - begin - 1]
    padding = [config.pad_token_id] * (frames - begin - 1 - len(words))
    return [config.pad_token_id] * begin + words + [config.eos_token_id] + padding


def blocks(checkpoint: Checkpoint) -> int:
    """How many times parameters are brought into memory: for the progress bar."""
    config = checkpoint.config
    layers = config.audio_config.encoder.n_layers + config.text_config.num_hidden_layers
    others = 11  # pre_encode, transcript, proj, embed_tokens, norm_f, two heads, codec twice, talker, its norm
    return layers + config.tts_config.num_hidden_layers + others


def largest_block(checkpoint: Checkpoint) -> int:
    """Bytes of the largest tensor in float32 on both sides, and as stored: the embedding or a head in a real model."""
    config = checkpoint.config.text_config
    stored = max(map(stored_bytes, (tensor for header in checkpoint.headers.values() for tensor in header.values())))
    return 2 * 4 * config.vocab_size * config.hidden_size + stored


def stored_bytes(tensor: TensorHeader) -> int:
    """At most: eight bytes for 64-bit integers, four for the rest."""
    size = 8 if tensor.dtype == "I64" else 4
    for length in tensor.shape:
        size *= length
    return size


def require_twin() -> None:
    """Raises InputError, with what to do, where PyTorch or the source checkout is missing."""
    root = Path(__file__).parents[2]
    has_twin = (root / "reference" / "model.py").is_file() and importlib.util.find_spec("reference") is not None
    missing = [name for name in TWIN_NEEDS if importlib.util.find_spec(name) is None]
    if has_twin and not missing:
        return
    steps = [] if has_twin else ["clone the repository and go to its root"]
    if missing:
        steps.append(f"install what is missing with: pip install {' '.join(TWIN_NEEDS.values())}")
    lacking = [*missing, *([] if has_twin else ["the PyTorch twin in reference/, which only a source checkout has"])]
    raise InputError(
        f"verify needs {' and '.join(lacking)}; {', '.join(steps)}, then run python -m voicechat_mlx.cli verify"
    )


def peak_memory() -> int:
    """Bytes; Linux counts in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
