from __future__ import annotations

import pytest

from tests.parity.agreement import assert_agreement
from tests.parity.comparisons.bfloat16 import compare_bfloat16
from tests.parity.pair import Checkpoints
from voicechat_mlx.report.rows import Row


@pytest.fixture(scope="module")
def rows(checkpoints: Checkpoints) -> list[Row]:
    return list(compare_bfloat16(checkpoints.pair("bf16")))


@pytest.mark.parametrize("network", ["perception", "encoder", "llm", "talker"])
def test_bfloat16_activations_stay_within_tolerance_to_the_last_layer(rows: list[Row], network: str) -> None:
    assert_agreement(row for row in rows if row.layer.startswith(network))


def test_the_activations_are_bfloat16_in_every_layer(rows: list[Row]) -> None:
    assert all(row.error > 1e-4 for row in rows), "float32 would be a hundred times closer"
