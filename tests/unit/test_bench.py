"""`bench`: figures that agree with one another and with what can be counted, in tables that can be pasted."""

from __future__ import annotations

import importlib.util
import json
import re
import struct
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors import safe_open

import voicechat_mlx as vc
from fixtures.make_tiny import make
from tests.models import SHALLOW, build, shallow, speech
from tests.unit.cli_helpers import check_refused, place
from voicechat_mlx import benchmark
from voicechat_mlx.benchmark import FEWEST_FRAMES, STAGES, WARM_UP_FRAMES, Timing, first_audio_ms, run_benchmark
from voicechat_mlx.cli.__main__ import main
from voicechat_mlx.cli.bench import markdown, precision_in_words, speech_of
from voicechat_mlx.names import canonical_name

__all__ = ["place"]  # a fixture
FRAMES = 25
"""In two seconds."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return make(tmp_path_factory.mktemp("models") / "a-model", "4bit")


@pytest.fixture(scope="module")
def measured(checkpoint, tmp_path_factory) -> Path:
    """A folder with what one run of the command wrote."""
    folder = tmp_path_factory.mktemp("measured")
    outputs = ["--json", f"{folder}/found.json", "--plot", f"{folder}/found.png"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("voicechat_mlx.cli.bench.say", (folder / "tables.md").write_text)
        assert main(["bench", "-m", str(checkpoint), "--seconds", "2", "-p", "Hello", *outputs]) == 0
    return folder


@pytest.fixture(scope="module")
def values(measured) -> dict:
    return json.loads((measured / "found.json").read_text(encoding="utf-8"))


# The figures


def test_every_stage_of_every_counted_frame_is_in_the_json(values) -> None:
    counted = FRAMES - WARM_UP_FRAMES
    assert values["frames"] == len(values["total_ms"]) == counted
    assert [*values["stage_ms"]] == [*values["stages"]] == [*STAGES]
    assert all(len(spent) == counted and min(spent) > 0 for spent in values["stage_ms"].values())


def test_stages_waited_for_one_by_one_fill_the_frame_but_for_a_little(values) -> None:
    """On a CPU both come from the same session: no frame is shorter than its stages."""
    stages = np.sum([*values["stage_ms"].values()], axis=0)
    assert (stages <= np.array(values["total_ms"])).all()
    assert stages.sum() > 0.5 * sum(values["total_ms"])


def test_medians_percentiles_and_the_real_time_factor_follow_from_the_frames(values) -> None:
    ordered = sorted(values["total_ms"])
    assert values["total"]["median"] == ordered[6]  # of 13
    assert values["total"]["slowest"] == ordered[-1]
    assert ordered[-2] < values["total"]["p95"] < ordered[-1]  # 0.95 · 12 = 11.4 of 0 … 12
    assert values["real_time_factor"] == pytest.approx(ordered[6] / 80)


def test_timing_of_the_numbers_up_to_a_hundred() -> None:
    assert Timing.of(range(101)) == Timing(median=50, p95=95, slowest=100)


def test_weights_are_counted_as_they_are_held(values, checkpoint) -> None:
    """Floats of two bytes become float32 on a CPU, packed ones stay; control codes of 8 bytes take 4."""
    sizes = []
    for shard in checkpoint.glob("*.safetensors"):
        with safe_open(shard, "np") as file:
            names = (name for name in file.keys() if canonical_name(name) is not None)  # noqa: SIM118
            sizes += [4 * int(np.prod(file.get_slice(name).get_shape())) for name in names]
    assert values["weight_bytes"] == sum(sizes)
    assert values["weight_bytes"] < values["peak_bytes"] < values["resident_bytes"]


def test_precision_and_prompt_are_told(values) -> None:
    assert values["precision"] == {
        "perception": "float32",
        "rnnt": "float32",
        "llm": "4 bits",
        "talker": "float32",
        "codec": "float32",
    }
    assert values["prompt_tokens"] == len("Hello") + 2  # a byte each, begin, end


@pytest.mark.parametrize(
    ("push_ms", "expected"),
    [
        ([10, 20], 180),  # 160 ms of sound, then the second push
        ([70, 20], 180),  # the first is done before the second's sound is there
        ([100, 20], 200),  # 80 + 100 is later than 160
        ([300, 100], 480),
        ([5], 85),
    ],
)
def test_first_audio_counts_the_sound_before_it_and_the_computing_that_nothing_hides(push_ms, expected) -> None:
    assert first_audio_ms(push_ms, 80) == expected


def test_first_audio_comes_when_two_frames_have_been_heard() -> None:
    found = run_benchmark(shallow(), speech(0.08 * FEWEST_FRAMES), "")
    assert 160 < found.first_audio_ms < 160 + 2 * 5000


def test_progress_counts_the_frames_of_all_runs() -> None:
    told = []
    run_benchmark(shallow(), speech(0.08 * FEWEST_FRAMES), "", progress=lambda *counts: told.append(counts))
    total = WARM_UP_FRAMES + 2 * FEWEST_FRAMES
    assert told[-1] == (total, total)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_stages_of_a_model_that_takes_whole_frames_are_measured_in_a_second_session() -> None:
    model = build(SHALLOW)
    model.run.compiled = True
    mx.disable_compile()
    try:
        found = run_benchmark(model, speech(0.08 * FEWEST_FRAMES), "")
    finally:
        mx.enable_compile()
    assert all(timing.median > 0 for timing in found.stages.values())
    assert len(found.total_ms) == len(found.stage_ms["talker"]) == FEWEST_FRAMES - WARM_UP_FRAMES


def test_the_speech_is_the_question_over_and_over() -> None:
    question = speech_of(3.0)
    long = speech_of(60.0)
    assert (len(question), len(long)) == (48_000, 960_000)
    np.testing.assert_array_equal(long[:48_000], question)
    assert np.abs(long[-48_000:]).max() > 0.01


# The tables


def test_columns_are_aligned_and_every_table_is_markdown(measured) -> None:
    tables = (measured / "tables.md").read_text().split("\n\n")
    assert len(tables) == 3
    for table in tables:
        lines = table.split("\n")
        bars = [[place for place, letter in enumerate(line) if letter == "|"] for line in lines]
        assert len(lines) >= 3
        assert all(found == bars[0] for found in bars)
        assert re.fullmatch(r"\|( -+:? \|)+", lines[1])


def test_the_tables_hold_the_figures_of_the_json(measured, values) -> None:
    row, stages, facts = (measured / "tables.md").read_text().split("\n\n")
    total = values["total"]
    assert f"| a-model, llm 4 bits, else float32 | {values['machine']['MLX']} " in row
    assert f"| {total['median']:.1f} ({total['p95']:.1f}) " in row
    last = stages.split("\n")[-1].replace("|", " ").split()
    assert last == ["**whole", "frame**", *(f"{total[name]:.1f}" for name in ("median", "p95", "slowest"))]
    assert len(stages.split("\n")) == 2 + len(STAGES) + 1
    assert f"{values['first_audio_ms']:.0f} ms after the first sample" in facts
    assert f"{values['prompt_ms']:.0f} ms, with a system prompt of 7 tokens" in facts
    assert values["machine"]["device"] in facts


def test_cells_are_padded_and_numbers_stand_to_the_right() -> None:
    assert markdown(["a", "ms"], [["long", "1.5"], ["b", "10.25"]], numbers=True) == (
        "| a    |    ms |\n| ---- | ----: |\n| long |   1.5 |\n| b    | 10.25 |"
    )
    assert markdown(["", "x"], [["a", "bcd"]], numbers=False) == "|   | x   |\n| - | --- |\n| a | bcd |"


def test_the_precision_of_a_network_is_not_that_of_its_tables_of_ids() -> None:
    model = build(SHALLOW)
    flags = model.talker.embed_subword.subword_flag_emb
    flags.is_continuation = mx.zeros((1 << 20,), dtype=mx.int32)
    assert set(benchmark.precisions(model).values()) == {"float32"}


def test_a_network_in_two_precisions_has_both() -> None:
    found = benchmark.precisions(vc.load(dtype="mixed"))
    assert found["talker"] in ("float32 and bfloat16", "bfloat16 and float32")
    assert (found["llm"], found["codec"]) == ("bfloat16", "float32")


def test_precision_in_words() -> None:
    assert precision_in_words({"llm": "float32", "talker": "float32", "codec": "float32"}) == "float32"
    mixed = {"perception": "bfloat16", "llm": "4 bits", "talker": "float32", "codec": "float32"}
    assert precision_in_words(mixed) == "perception bfloat16, llm 4 bits, else float32"


def test_the_machine_names_its_blas_only_where_mlx_uses_one(monkeypatch) -> None:
    monkeypatch.setattr(benchmark.sys, "platform", "linux")
    assert "BLAS" in benchmark.machine()
    monkeypatch.setattr(benchmark.sys, "platform", "darwin")
    assert "BLAS" not in benchmark.machine()


# The picture


def test_the_picture_is_a_png(measured) -> None:
    head = (measured / "found.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", head[16:24]) == (1100, 480)


# Refusals, before the model is loaded


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seconds", "1.9"], "--seconds 1.9 is not a length from 2 to 600"),
        (["--seconds", "601"], "--seconds 601 is not a length"),
        (["--seconds", "nan"], "--seconds nan is not a length"),
        (["--seconds", "-5"], "--seconds -5 is not a length"),
        (["--seconds", "ten"], "'ten' is not a number of seconds"),
        (["--dtype", "float16"], "invalid choice: 'float16'"),
        (["--seed", "-1"], "the seed '-1' is not a whole number"),
        (["--json", ""], "--json: the name given is empty"),
        (["--json", "no/such/folder.json"], "the folder of no/such/folder.json does not exist"),
        (["--plot", "a.pdf"], "--plot a.pdf would not be a .pdf file; end its name in .png"),
        (["--plot", "a.png", "--json", "a.png"], "both name a.png"),
        (["--audio", "a.wav"], "unknown argument --audio"),
    ],
)
def test_wrong_options_are_refused(place, capsys, options, message) -> None:
    check_refused(capsys, ["bench", *options], message)


def test_no_file_of_the_model_is_overwritten(place, capsys, checkpoint) -> None:
    check_refused(
        capsys, ["bench", "-m", str(checkpoint), "--json", f"{checkpoint}/config.json"], "a file of the model itself"
    )


def test_a_picture_needs_matplotlib(place, capsys, monkeypatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    check_refused(capsys, ["bench", "--plot", "a.png"], "--plot needs matplotlib; install it with: pip install")


def test_a_model_that_is_not_there_is_named(capsys, tmp_path) -> None:
    assert main(["bench", "-m", f"{tmp_path}/none"]) == 2
    assert f"{tmp_path}/none" in capsys.readouterr().err


# The service


def test_the_service_is_measured_over_its_own_connection(checkpoint, tmp_path, capsys) -> None:
    """A frame there and back is what the model takes and what the rest adds, each a median of its own."""
    pytest.importorskip("uvicorn"), pytest.importorskip("websockets")
    found = tmp_path / "found.json"
    assert main(["bench", "-m", str(checkpoint), "--seconds", "2", "--serve", "--json", str(found)]) == 0
    online = json.loads(found.read_text(encoding="utf-8"))["online"]
    assert 0 < online["overhead_ms"] < online["round_trip_ms"] <= online["round_trip_p95_ms"]
    assert 0 < online["compute_ms"] < online["round_trip_ms"]
    rows = dict(re.findall(r"^\| (.+?) +\| +([\d.]+) \|$", capsys.readouterr().out, re.MULTILINE))
    assert float(rows["a frame there and back"]) == pytest.approx(online["round_trip_ms"], abs=0.05)
