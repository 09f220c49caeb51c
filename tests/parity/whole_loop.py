"""A recording through everything, on both sides: every named activation is compared.

Errors add up here, and one wrong id changes all that follows, so agreement says that caches, order of steps, control
codes and random numbers are right too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

import reference.offline
from tests.parity.pair import Pair, shared_draws
from tests.parity.tolerances import BFLOAT16_WEIGHTS, FLOAT32, MEL
from voicechat_mlx.audio.wav import read_audio
from voicechat_mlx.report.rows import Row, compare, compare_ids
from voicechat_mlx.trace import trace

ROOT = Path(__file__).parents[2]
QUESTION = ROOT / "voicechat_mlx" / "bundled" / "question.wav"
PROMPT = "Be concise."
IDS = frozenset(
    ("rnnt.ids", "rnnt.frames", "text.ids", "function.ids", "tts.prompt_codes", "tts.step_codes", "tts.codes")
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is asked of a model."""

    prompt: str = ""
    conventions: str = "mlx"
    samples: int | None = None
    """How much of the question is heard; None: all."""
    extra_seconds: float = 1.0
    seed: int = 0


SPOKEN = Run(prompt=PROMPT)
"""The run whose activations also serve as inputs when blocks are compared one by one."""
PADDED_END = 1280 * 24 + 160 + 80
"""Samples of which the publisher's convention makes a last frame of nothing but padding: 8 · 24 + 1 whole hops."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A run on a checkpoint."""

    name: str
    run: Run
    variant: str = "fp32"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    encoded_tolerance: float = FLOAT32


SCENARIOS = (
    Scenario(name="no prompt", run=Run()),
    Scenario(name="prompt", run=SPOKEN),
    Scenario(name="nemo", run=Run(conventions="nemo", samples=PADDED_END, extra_seconds=0.0)),
    Scenario(name="nemo, prompt", run=Run(conventions="nemo", prompt=PROMPT)),
    Scenario(name="no noise", run=Run(), overrides={"tts_config": {"noise_scale": 0.0, "top_p": 1e-6}}),
    Scenario(name="loud noise", run=Run(seed=7), overrides={"tts_config": {"noise_scale": 0.5}}),
    Scenario(name="bf16 weights", run=SPOKEN, variant="bf16", encoded_tolerance=BFLOAT16_WEIGHTS),
    Scenario(name="torch layout", run=SPOKEN, variant="torch-layout"),
    Scenario(name="4-bit weights", run=SPOKEN, variant="4bit"),
)


def trace_names(encoder_layers: int) -> list[str]:
    """The public names of a trace, in the order of the data flow."""
    return [
        "mel",
        "encoder.pre_encode",
        *(f"encoder.layers.{index}" for index in range(encoder_layers)),
        "perception.encoded",
        "perception.projected",
        "rnnt.ids",
        "rnnt.frames",
        "llm.fused",
        "llm.hidden",
        "llm.text_logits",
        "llm.function_logits",
        "text.ids",
        "function.ids",
        "tts.prompt_codes",
        "tts.warmup_cond",
        "tts.warmup_fused",
        "tts.warmup_hidden",
        "tts.cond",
        "tts.fused",
        "tts.hidden",
        "tts.mog_mu",
        "tts.mog_logs",
        "tts.step_codes",
        "tts.codes",
        "codec.latents",
        "codec.features",
        "codec.audio",
    ]


def compare_loops(pair: Pair, run: Run, encoded_tolerance: float = FLOAT32) -> Iterator[Row]:
    """One row for each name. Raises AssertionError when a side's names are not the public ones."""
    ours, theirs = mlx_loop(pair, run), twin_loop(pair, run)
    names = trace_names(len(pair.twin.perception.encoder.layers))
    assert set(ours) == set(theirs) == set(names), set(names) ^ set(ours) | set(names) ^ set(theirs)
    tolerances = {"mel": MEL, "perception.encoded": encoded_tolerance}
    for name in names:
        if name in IDS:
            yield compare_ids(name, ours[name], theirs[name])
        else:
            yield compare(name, ours[name], theirs[name], tolerances.get(name, FLOAT32))


def mlx_loop(pair: Pair, run: Run) -> dict[str, NDArray[Any]]:
    """The session's activations, recorded."""
    return trace(pair.mlx, question(run), run.prompt, run.extra_seconds, run.seed, run.conventions)


def twin_loop(pair: Pair, run: Run) -> dict[str, Tensor]:
    """The twin's activations, computed once for each run."""
    if run not in pair.loops:
        pair.loops[run] = reference.offline.generate(
            pair.twin,
            question(run),
            prompt_ids=prompt_ids(pair.folder, run.prompt),
            extra_decoding_seconds=run.extra_seconds,
            conventions=run.conventions,
            draws=shared_draws(pair.mlx, run.seed),
        )
    return pair.loops[run]


def question(run: Run) -> NDArray[np.float32]:
    """What is heard, without the appended silence."""
    return read_audio(QUESTION)[: run.samples]


def prompt_ids(folder: Path, prompt: str) -> list[int]:
    """[BOS] + ids + [EOS], or [] without a prompt."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [1, *tokenizer.encode(prompt, add_special_tokens=False).ids, 2] if prompt else []
