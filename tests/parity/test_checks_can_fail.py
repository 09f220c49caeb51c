"""A comparison that cannot fail proves nothing: one weight of one side is moved, and the report must name its layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_unflatten

import voicechat_mlx
from tests.parity.comparisons.codec import codec_blocks
from tests.parity.comparisons.llm import llm_blocks
from tests.parity.comparisons.perception import perception_blocks
from tests.parity.comparisons.talker import talker_blocks
from tests.parity.pair import Pair
from tests.parity.report import BLOCKS, report
from tests.parity.whole_loop import Run, compare_loops
from voicechat_mlx.report.rows import Row, compare, compare_ids, compare_pcm, compare_snr, first_failure, labelled
from voicechat_mlx.report.table import summary

SHORT = Run(samples=1280, extra_seconds=0.0)
"""Two frames, one talker step: codes cannot return into the loop, so a wrong one shows nowhere before itself."""


@dataclass(frozen=True, kw_only=True)
class Moved:
    """A weight, the comparison of its network, the first block that feels it and the first activation of a run."""

    weight: str
    network: Callable[[Pair], Iterator[Row]]
    block: str
    activation: str | None
    """None: ids alone could show it, and a millionth of a logit changes none."""


MOVED = (
    Moved(
        weight="perception.encoder.pre_encode.conv.3.weight",
        network=perception_blocks,
        block="encoder.pre_encode",
        activation="encoder.pre_encode",
    ),
    Moved(
        weight="perception.encoder.layers.1.self_attn.pos_bias_v",
        network=perception_blocks,
        block="encoder.layers.1.self_attn",
        activation="encoder.layers.1",
    ),
    Moved(weight="rnnt_joint.joint_net.2.weight", network=perception_blocks, block="rnnt.logits", activation=None),
    Moved(weight="llm.layers.2.mixer.D", network=llm_blocks, block="llm.layers.2 Mamba-2", activation="llm.hidden"),
    Moved(
        weight="llm.layers.3.mixer.k_proj.weight",
        network=llm_blocks,
        block="llm.layers.3 attention",
        activation="llm.hidden",
    ),
    Moved(
        weight="function_head.weight",
        network=llm_blocks,
        block="llm.function_logits",
        activation="llm.function_logits",
    ),
    Moved(
        weight="talker.backbone.layers.2.self_attn.q_norm.weight",
        network=talker_blocks,
        block="talker.backbone.layers.2",
        activation="tts.warmup_hidden",
    ),
    Moved(
        weight="talker.mog_head.proj_logs.weight",
        network=talker_blocks,
        block="talker.mog_head mean",
        activation="tts.mog_mu",
    ),
    Moved(
        weight="codec.decoder.layers.5.pwconv1.weight",
        network=codec_blocks,
        block="codec.decoder.layers.5",
        activation="codec.features",
    ),
)


@pytest.mark.parametrize("move", MOVED, ids=lambda move: move.weight)
def test_the_first_failure_is_where_the_weight_was_moved(fp32: Pair, move: Moved) -> None:
    pair = moved(fp32, move.weight)
    rows = list(labelled(move.network(pair), section=BLOCKS, run="fp32"))
    failure = first_failure(rows)
    assert failure is not None
    assert failure.layer == move.block
    assert f"first {move.block} " in summary(rows)
    activation = first_failure(compare_loops(pair, SHORT))
    assert (activation.layer if activation else None) == move.activation


def test_a_report_with_a_failing_layer_fails_and_does_not_run_the_command(
    fp32: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = labelled(compare_loops(moved(fp32, "lm_head.weight"), SHORT), section="loop", run="short")
    assert report(rows, lambda: pytest.fail("the command was run"), tmp_path) == 1
    shown = capsys.readouterr().out
    assert "first llm.text_logits (loop, short)" in shown
    assert "FAIL" in (tmp_path / "parity.md").read_text(encoding="utf-8")


def test_a_report_fails_when_only_the_command_disagrees(tmp_path: Path) -> None:
    good = labelled([compare("mel", np.ones(3), np.ones(3), 0.0)], section="loop", run="short")
    assert report(good, lambda: [compare_ids("audio_codes", np.arange(3), np.zeros(3))], tmp_path) == 1


ONES = np.ones(4)


@pytest.mark.parametrize(
    "row",
    [
        compare("one value too far", 1 + np.array([0, 0, 0, 4.1e-5]), ONES, 2e-5),
        compare("another shape", np.ones((1, 4)), ONES, 2e-5),
        compare("not a number", np.array([1, 1, 1, np.nan]), ONES, 2e-5),
        compare("infinite on both sides", np.array([1, np.inf]), np.array([1, np.inf]), None),
        compare("something for nothing", 1e-9 * ONES, 0 * ONES, 2e-5),
        compare_ids("one id", np.array([1, 2, 3]), np.array([1, 2, 4])),
        compare_ids("one id too few", np.array([1, 2]), np.array([1, 2, 3])),
        compare_snr("79.9 dB", ONES * (1 + 10 ** (-79.9 / 20)), ONES, 80.0),
        compare_pcm("two steps", np.array([2], np.int16), np.array([0.0]), 1.0),
    ],
    ids=lambda row: row.layer,
)
def test_what_is_out_of_tolerance_fails(row: Row) -> None:
    assert not row.passed
    assert row.verdict == "FAIL"


@pytest.mark.parametrize(
    "row",
    [
        compare("one value just inside", 1 + np.array([0, 0, 0, 3.9e-5]), ONES, 2e-5),
        compare("silence on both sides", 0 * ONES, 0 * ONES, 0.0),
        compare_ids("no ids on both sides", np.zeros(0), np.zeros(0)),
        compare_snr("80.1 dB", ONES * (1 + 10 ** (-80.1 / 20)), ONES, 80.0),
        compare_pcm("full scale, clipped", np.array([32767], np.int16), np.array([1.0]), 0.0),
    ],
    ids=lambda row: row.layer,
)
def test_what_is_within_tolerance_passes(row: Row) -> None:
    assert row.passed


def moved(pair: Pair, name: str) -> Pair:
    """The pair with every number of one MLX weight moved by 1e-3, up or down."""
    model = voicechat_mlx.load(pair.folder, dtype="float32")
    weight: mx.array = dict(tree_flatten(model.parameters()))[name]
    signs = np.random.default_rng(0).choice([-1e-3, 1e-3], weight.shape)
    model.update(tree_unflatten([(name, weight + mx.array(signs.astype(np.float32)))]))
    model.prepare(model.tokenizer, model.rnnt_vocabulary)
    return pair.with_mlx(model)
