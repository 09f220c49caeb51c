"""The bundled model in 4 bits, as `voicechat convert fixtures/voicechat-nano OUT --bits 4` makes it."""

from __future__ import annotations

import json
from pathlib import Path

from reference.training.answerers import Reply
from reference.training.evaluate import same_text
from reference.training.heldout import Case
from tests.checkpoint.heldout import HELDOUT
from voicechat_mlx.checkpoint import BUNDLED

ASKED = 10


def test_it_says_the_same_in_at_least_95_percent_of_cases(
    four_bit: Path, cases: list[Case], replies: list[Reply]
) -> None:
    asked = [place for place, case in enumerate(cases) if case.kind == "one question"][:ASKED]
    found = same_text(four_bit, [cases[place] for place in asked], HELDOUT, [replies[place] for place in asked])
    assert found["cases"] == ASKED
    assert found["same text"] >= 95


def test_the_language_path_is_in_4_bits_and_the_file_is_smaller(four_bit: Path) -> None:
    values = json.loads((four_bit / "config.json").read_text(encoding="utf-8"))
    assert values["quantization"]["bits"] == 4
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (four_bit, BUNDLED)]
    assert sizes[0] < 0.9 * sizes[1]
