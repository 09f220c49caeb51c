"""Train the language model on conversations: when to speak, what to say, when to stop, when to call a tool.

Reads WORK/data and WORK/perception. Writes WORK/duplex: weights of the language model, its heads and the projection,
figures.json and the loss curve. Short conversations first, long ones later; in the later part every second step sees
its weights rounded to 4 bits, so that the quantised checkpoint answers alike.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from reference.llm.nemotron_h import Block
from reference.model import VoiceChat
from reference.training.cases import held_out_rows
from reference.training.data import Clip, read_clips
from reference.training.devices import choose_device, compile_blocks
from reference.training.features import SoundBank
from reference.training.loop import LoopSettings, Phase, Trainer
from reference.training.model_files import (
    load_earlier,
    load_into,
    load_tensors,
    new_model,
    part_of,
    read_tokenizer,
    round_to_bf16,
    save_tensors,
)
from reference.training.options import settings_of, training_parser
from reference.training.scoring import score
from reference.training.thinking import Rows, Thinking, hear, in_four_bits, run_freely, with_weights
from reference.training.timelines import Planner, random_row
from reference.training.vocabularies import PAD

PREFIXES = ("llm.", "embed_tokens.", "lm_head.", "function_head.", "perception.proj.")
NOISE = (0.7, 5e-5, 1.2e-2)
"""Share of rows with white noise, and its RMS."""
TEST_NOISE = (0.5, 1e-4, 1e-2)


@dataclass(frozen=True, kw_only=True)
class DuplexSettings:
    """Conversations short and long."""

    loop: LoopSettings
    short_frames: int
    short_rows: int
    short_pool: int
    """Different conversations."""
    short_until: float
    """Progress at which the long ones begin."""
    long_frames: int
    long_rows: int
    long_pool: int
    test_rows: int
    """Conversations of each kind that are judged at the end; 0 for one of every question."""


def rows_loss(rows: Rows, logits: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Cross-entropy of both heads on audio frames but forced ones, over the number of labels that are not PAD."""
    audible = torch.arange(rows.text.shape[1], device=rows.text.device) >= rows.prompt_lengths.unsqueeze(1)
    text, function = rows.text.long(), rows.function.long()
    text_loss = _cross_entropy(logits[0], text) * audible
    function_loss = _cross_entropy(logits[1], function) * (audible & ~rows.forced)
    said = ((text != PAD) & audible).sum() + ((function != PAD) & audible & ~rows.forced).sum()
    right = ((logits[0].argmax(2) == text) & audible & (text != PAD)).sum() / ((text != PAD) & audible).sum().clamp_min(
        1
    )
    return {
        "loss": (text_loss.sum() + function_loss.sum()) / said.clamp_min(1),
        "text": text_loss.sum() / said.clamp_min(1),
        "function": function_loss.sum() / said.clamp_min(1),
        "right": right,
    }


def _cross_entropy(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="none").view_as(ids)


def losses(thinking: Thinking, pool: Rows, rows: int) -> tuple[Callable[[], dict[str, Tensor]], ...]:
    """The loss on random rows of the pool, with the weights as they are and with 4-bit ones."""

    def draw() -> Rows:
        return pool.take(torch.randint(len(pool), (rows,), device=pool.text.device))

    def plain() -> dict[str, Tensor]:
        chosen = draw()
        return rows_loss(chosen, thinking(chosen, chosen.text, chosen.function))

    def four_bits() -> dict[str, Tensor]:
        chosen = draw()
        return rows_loss(chosen, with_weights(thinking, in_four_bits(thinking), chosen))

    return plain, four_bits


def measure(
    model: VoiceChat, thinking: Thinking, sounds: SoundBank, planner: Planner, settings: DuplexSettings, seed: int
) -> dict[str, dict[str, float]]:
    """Every kind of test conversation → its figures; single questions also with 4-bit weights."""
    figures = {}
    for name, rows in held_out_rows(
        planner, settings.long_frames, settings.test_rows, np.random.default_rng(seed + 1)
    ).items():
        heard = hear(model, sounds, rows, TEST_NOISE)
        text, function = (ids.cpu().numpy() for ids in run_freely(thinking, heard))
        figures[name] = score(rows, text, function, planner.tokenizer)
        if name == "one question":
            packed = {key: value.detach() for key, value in in_four_bits(thinking).items()}
            small = run_freely(thinking, heard, packed)[0].cpu().numpy()
            same = [float(np.array_equal(a[a != PAD], b[b != PAD])) for a, b in zip(text, small, strict=True)]
            figures["4 bits"] = {"same text": round(100 * float(np.mean(same)), 2), "cases": len(same)}
    return figures


def make_pool(
    model: VoiceChat, sounds: SoundBank, planner: Planner, count: int, frames: int, random: np.random.Generator
) -> Rows:
    """That many random conversations, heard."""
    return hear(model, sounds, [random_row(planner, frames, random) for _ in range(count)], NOISE)


def train(arguments: argparse.Namespace) -> None:
    """The whole step."""
    folder: Path = arguments.work / "duplex"
    if (folder / "figures.json").is_file() and not arguments.again:
        print(f"duplex: {folder} is complete")
        return
    device = choose_device(arguments)
    settings = settings_of(arguments, "duplex", DuplexSettings)
    model = new_model(arguments, device)
    load_into(model, load_tensors(arguments.work / "perception"))
    load_earlier(model, folder)
    round_to_bf16(model.perception.encoder)
    clips, samples, aria, _ = read_clips(arguments.work / "data")
    sounds = SoundBank(samples, [clip.offset for clip in clips], [clip.length for clip in clips]).to(device)
    planners = {split: _planner(arguments, clips, aria, split) for split in ("train", "test")}
    random = np.random.default_rng(arguments.seed)
    model.eval()
    short = make_pool(model, sounds, planners["train"], settings.short_pool, settings.short_frames, random)
    long = make_pool(model, sounds, planners["train"], settings.long_pool, settings.long_frames, random)
    print(f"duplex: {len(short)} + {len(long)} conversations were heard", flush=True)

    def save() -> None:
        save_tensors(folder, part_of(model, PREFIXES))

    thinking = Thinking(model)
    if device.type == "cuda" and arguments.compile:
        compile_blocks(model.llm, Block)
    Trainer("duplex", folder, thinking, thinking.parameters(), settings.loop, arguments, save).run(
        [
            Phase(until=settings.short_until, computes=losses(thinking, short, settings.short_rows)[:1]),
            Phase(until=1.0, computes=losses(thinking, long, settings.long_rows)),
        ]
    )
    round_to_bf16(thinking)
    save()
    torch.set_float32_matmul_precision("highest")
    with torch.compiler.set_stance("force_eager"):
        figures = measure(model, thinking, sounds, planners["test"], settings, arguments.seed)
    (folder / "figures.json").write_text(json.dumps(figures, indent=1))
    print(f"duplex: {json.dumps(figures)}", flush=True)


def _planner(arguments: argparse.Namespace, clips: list[Clip], aria: list[Clip], split: str) -> Planner:
    return Planner(clips, aria, read_tokenizer(arguments.work / "data"), split)


if __name__ == "__main__":
    train(training_parser("duplex", __doc__).parse_args())
