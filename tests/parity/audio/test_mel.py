from __future__ import annotations

import numpy as np
import pytest

from tests.parity.agreement import assert_agreement
from tests.parity.comparisons.perception import compare_mel
from tests.parity.pair import Pair
from tests.parity.whole_loop import SPOKEN, question

CONVENTIONS = pytest.mark.parametrize("conventions", ["mlx", "nemo"])


@CONVENTIONS
def test_a_spoken_question_gives_the_same_mel(fp32: Pair, conventions: str) -> None:
    assert_agreement([compare_mel(fp32, question(SPOKEN), conventions)])


@CONVENTIONS
@pytest.mark.parametrize("count", [160, 161, 199, 200, 201, 256, 257, 319, 320, 399, 400, 401, 1281])
def test_recordings_about_as_short_as_the_window_give_the_same_mel(fp32: Pair, conventions: str, count: int) -> None:
    assert_agreement([compare_mel(fp32, question(SPOKEN)[8000 : 8000 + count], conventions)])


@pytest.mark.parametrize("count", [1, 2, 3, 100, 159])
def test_recordings_shorter_than_a_hop_are_mirrored_as_often_as_needed(fp32: Pair, count: int) -> None:
    assert_agreement([compare_mel(fp32, question(SPOKEN)[8000 : 8000 + count], "mlx")])


@CONVENTIONS
@pytest.mark.parametrize("level", [0.0, 1e-4, 1.0])
def test_silence_whisper_and_clipping_give_the_same_mel(fp32: Pair, conventions: str, level: float) -> None:
    loud = np.clip(50 * question(SPOKEN)[6000:12000], -1, 1).astype(np.float32)
    assert_agreement([compare_mel(fp32, np.float32(level) * loud, conventions)])
