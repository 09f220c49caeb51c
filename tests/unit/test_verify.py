"""`verify` passes on sound checkpoints, names what is wrong on others, and holds no more than one block."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from fixtures.make_tiny import make
from tests.models import SHALLOW
from tests.unit.test_convert import edit
from voicechat_mlx import memory
from voicechat_mlx.checkpoint import BUNDLED, Checkpoint
from voicechat_mlx.cli.__main__ import main
from voicechat_mlx.cli.common import BUNDLED_QUESTION
from voicechat_mlx.convert import Options, convert, plan_conversion
from voicechat_mlx.errors import CheckpointError
from voicechat_mlx.precision import precision
from voicechat_mlx.report.rows import Row, first_failure
from voicechat_mlx.verify import TWIN_NEEDS, Verification, spoken_ids, verify
from voicechat_mlx.verify.sides import MlxSide, Pair, TwinSide
from voicechat_mlx.verify.tensors import flagged_tensors, wildly_scaled
from voicechat_mlx.verify.track import ALONE, OWN

SHORT = ["--seconds", "0.4"]


@pytest.fixture(scope="module")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("shallow"), "fp32", **SHALLOW)


def verified(folder: Path, dtype: str = "float32") -> Verification:
    return verify(folder, BUNDLED_QUESTION, 0.4, dtype)


def row(found: Verification, layer: str, run: str = ALONE) -> Row:
    [only] = [row for row in found.rows if (row.layer, row.run) == (layer, run)]
    return only


# Sound checkpoints


def test_a_sound_checkpoint_passes_with_a_row_for_every_layer(tiny_4bit) -> None:
    found = verified(tiny_4bit)
    assert found.passed and found.flags == ()
    layers = {row.layer for row in found.rows}
    expected = {f"encoder.layers.{index}" for index in range(2)} | {f"talker.backbone.layers.{n}" for n in range(4)}
    kinds = ("Mamba-2", "MLP", "Mamba-2", "attention", "MLP", "Mamba-2")
    expected |= {f"llm.layers.{index} {kind}" for index, kind in enumerate(kinds)}
    expected |= {f"codec.{side}.layers.{index}" for side in ("encoder", "decoder") for index in range(13)}
    assert expected <= layers
    for layer in ("llm.text_ids", "llm.function_ids", "talker.codes"):
        assert (row(found, layer).error, row(found, layer, OWN).error) == (0, 0)
    # 0.4 s: 41 mel rows, (41 - 2) // 8 + 2 = 6 frames; a talker step at all but the first
    assert row(found, "llm.text_ids").shape == (1, 6) and row(found, "talker.codes").shape == (5, 31)
    assert row(found, "440 Hz tone, round trip, MLX").shape == (1, 22050)


@pytest.mark.parametrize("variant", ["bf16", "torch-layout"])
def test_other_kinds_of_checkpoints_pass_too(tmp_path, variant) -> None:
    assert verified(make(tmp_path, variant, **SHALLOW)).passed


def test_bfloat16_arithmetic_is_judged_by_its_own_tolerance(shallow) -> None:
    found = verified(shallow, "bfloat16")
    assert found.passed
    hidden = row(found, "llm.layers.0 Mamba-2")
    assert hidden.tolerance == 5e-2 and hidden.error > 1e-4
    assert row(found, "codec.decoder.layers.1").tolerance == 2e-5  # float32 always
    assert row(found, "llm.text_ids").tolerance is None


def test_words_are_said_from_a_third_of_the_way_on_between_bos_and_eos(tiny_fp32) -> None:
    ids = spoken_ids(Checkpoint.open(tiny_fp32), 60)
    assert ids[:20] == [12] * 20 and ids[20] == 1
    end = ids.index(2)
    assert 2 not in ids[end + 1 :] and set(ids[end + 1 :]) <= {12}
    assert 12 not in ids[21:end] and len(ids) == 60
    assert len(spoken_ids(Checkpoint.open(tiny_fp32), 4)) == 4


def test_against_the_weights_it_was_made_from_shows_what_quantising_costs_and_judges_nothing(shallow, tmp_path) -> None:
    packed = convert(plan_conversion(shallow, Options(bits=4, dtype="fp32")), tmp_path / "4bit")
    found = verify(packed, BUNDLED_QUESTION, 0.4, "float32", against=shallow)
    assert found.passed and {row.tolerance for row in found.rows if row.section == "language model"} == {None}
    # 4 bits for the range of a group of 64, ±2.4 σ: steps of 0.32 σ, rounded with an RMS of 0.32 / √12 = 0.09 σ
    assert 0.05 < row(found, "llm.text_logits").error < 0.15
    assert row(found, "encoder.layers.0").error < 2e-5  # not quantised
    assert "rnnt.ids" not in {row.layer for row in found.rows}  # what is judged or nothing
    with pytest.raises(CheckpointError, match="is another model: its text_config differs"):
        verify(packed, BUNDLED_QUESTION, 0.4, against=make(tmp_path / "whole", "bf16"))


# What is wrong is named


@pytest.mark.parametrize(
    ("weight", "layer"),
    [
        ("perception.encoder.layers.0.self_attn.linear_v.weight", "encoder.layers.0"),
        ("llm.layers.1.mixer.v_proj.weight", "llm.layers.1 attention"),
        ("talker.backbone.layers.1.mlp.gate_proj.weight", "talker.backbone.layers.1"),
        ("codec.decoder.layers.3.pwconv1.weight", "codec.decoder.layers.3"),
    ],
)
def test_the_first_block_that_diverges_is_named_and_the_exit_code_is_1(
    shallow, monkeypatch, capsys, weight, layer
) -> None:
    place = MlxSide._placed
    monkeypatch.setattr(MlxSide, "_placed", lambda *given: place(*given) * (1.05 if weight in given else 1))
    assert main(["verify", "-m", str(shallow), *SHORT]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert f"the first block that diverges is {layer} (" in captured.err
    assert f"first {layer} " in captured.out


def test_a_tensor_of_another_size_than_its_siblings_is_named(tmp_path, capsys) -> None:
    name = "tts_model.tts_model.backbone.layers.2.mlp.up_proj.weight"
    four = SHALLOW | {"tts_config": SHALLOW["tts_config"] | {"num_hidden_layers": 4}}
    folder = edit(make(tmp_path, "fp32", **four), lambda tensors: tensors.update({name: 256 * tensors[name]}))
    assert main(["verify", "-m", str(folder), *SHORT]) == 1
    captured = capsys.readouterr()
    assert f"SUSPICIOUS {name} has RMS " in captured.out and "its 3 siblings" in captured.out
    assert captured.err.startswith(f"voicechat: {name} has RMS ")


def test_zeros_and_what_is_not_a_number_are_named(tmp_path) -> None:
    names = ["stt_model.perception.proj.weight", "stt_model.llm.norm_f.weight"]

    def damage(tensors: dict[str, mx.array]) -> None:
        tensors[names[0]] = mx.zeros_like(tensors[names[0]])
        tensors[names[1]] = mx.full(tensors[names[1]].shape, float("nan"))

    folder = edit(make(tmp_path, "fp32", **SHALLOW), damage)
    flags = {flag.name: flag.trouble for flag in flagged_tensors(Checkpoint.open(folder))}
    assert flags == {names[0]: "holds only zeros", names[1]: "holds NaN or infinity"}
    found = verified(folder)
    failure = first_failure(found.rows)
    assert not found.passed and failure is not None and failure.layer == "llm.norm_f"
    assert failure.fault == "not finite"


def test_only_what_stands_a_hundredfold_apart_is_wildly_scaled() -> None:
    sizes = {f"a.{layer}.weight": 1.0 + layer for layer in range(4)}
    assert list(wildly_scaled({**sizes, "a.4.weight": 240.0})) == []
    assert [flag.name for flag in wildly_scaled({**sizes, "a.4.weight": 350.0})] == ["a.4.weight"]
    assert [flag.name for flag in wildly_scaled({**sizes, "a.4.weight": 0.019})] == ["a.4.weight"]
    assert [flag.name for flag in wildly_scaled({"alone.weight": 2e4, "b.0.weight": 1.0, "b.1.weight": 900.0})] == [
        "alone.weight"
    ]


def test_a_checkpoint_that_cannot_be_loaded_is_refused(tmp_path, capsys) -> None:
    folder = edit(make(tmp_path, "fp32"), lambda tensors: tensors.pop("stt_model.lm_head.weight"))
    assert main(["verify", "-m", str(folder)]) == 2
    assert "cannot be loaded, so not verified: 1 tensor is missing: stt_model.lm_head" in capsys.readouterr().err


# One block at a time


def test_what_was_filled_is_gone_when_the_block_ends(tiny_4bit) -> None:
    checkpoint = Checkpoint.open(tiny_4bit)
    pair = Pair.open(checkpoint, precision("float32"))
    before = mx.get_active_memory()
    with pair.filled("llm.layers.0") as (ours, theirs):
        held = sum(array.nbytes for _, array in tree_flatten(ours.llm.layers[0].parameters()))
        assert held <= mx.get_active_memory() - before <= 2 * held
        state = theirs.state_dict()
        assert {name for name in state if not state[name].is_meta} == {
            name for name in state if name.startswith("llm.layers.0.")
        }
    del ours, theirs, state
    assert mx.get_active_memory() - before < held / 10
    assert all(tensor.is_meta for tensor in pair.twin._model.state_dict().values())


def test_the_twin_reads_the_same_numbers_as_its_own_loader(tiny_4bit) -> None:
    from reference.weights import load_model

    whole, twin = load_model(tiny_4bit).state_dict(), TwinSide(Checkpoint.open(tiny_4bit))
    names = ("embed_tokens", "llm.layers.0", "perception.encoder.pre_encode", "rnnt_decoder", "codec.decoder.layers.0")
    with twin.filled(*names) as model:
        filled = {name: tensor for name, tensor in model.state_dict().items() if not tensor.is_meta}
        assert len(filled) > 20
        assert all(tensor.equal(whole[name]) for name, tensor in filled.items())


def test_memory_for_two_blocks_is_enough(shallow, monkeypatch) -> None:
    monkeypatch.setattr(memory, "machine_memory", lambda: 1_000_000_000)
    with pytest.raises(CheckpointError, match=r"verifying .* block by block needs 2\.00 GB .* there is 1\.00 GB"):
        verify(shallow, BUNDLED_QUESTION, 0.4)
    assert verify(shallow, BUNDLED_QUESTION, 0.4, force=True).passed


# The report


def test_the_report_is_written_as_markdown_json_and_picture(shallow, tmp_path, capsys) -> None:
    folder = tmp_path / "report"
    assert main(["verify", "-m", str(shallow), *SHORT, "--report", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert sorted(path.name for path in folder.iterdir()) == ["verify.json", "verify.md", "verify.png"]
    values = json.loads((folder / "verify.json").read_text(encoding="utf-8"))
    markdown = (folder / "verify.md").read_text(encoding="utf-8")
    assert values["passed"] and values["flags"] == [] and values["seconds"] == 0.4
    assert {row["input"] for row in values["rows"]} == {ALONE, OWN}
    assert values["summary"] in printed and values["summary"] in markdown
    assert "| llm.layers.1 attention | 1 × 6 × 64 |" in markdown
    assert "talker.codes: 155 of 155 equal, from its own input" in printed
    assert (folder / "verify.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seconds", "0"], "--seconds 0 is not a length"),
        (["--seconds", "nan"], "--seconds nan is not a length"),
        (["--seconds", "0.1"], "too short to verify with"),
        (["--audio", "none.wav"], "none.wav does not exist"),
        (["--report", "none/report"], "the folder of none/report does not exist; make it with: mkdir -p"),
        (["--report", "file"], "file is not a folder"),
        (["-m", "none"], "'none' does not exist"),
    ],
)
def test_wrong_input_is_refused_in_one_line(tmp_path, monkeypatch, capsys, words, message) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine", encoding="utf-8")
    assert main(["verify", *words]) == 2
    captured = capsys.readouterr()
    [error] = captured.err.splitlines()
    assert message in error and captured.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("absent", "message"),
    [
        ("torch", "verify needs torch; install what is missing with: pip install torch==2.13.0 librosa, then run"),
        ("librosa", "verify needs librosa; install what is missing with: pip install torch==2.13.0 librosa, then run"),
        ("reference", "which only a source checkout has; clone the repository and go to its root, then run python -m"),
        ("matplotlib", "--report draws a picture with matplotlib; install it with"),
    ],
)
def test_what_is_not_installed_is_named_with_the_way_to_get_it(tmp_path, monkeypatch, capsys, absent, message) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == absent else find(name, *more))
    assert main(["verify", "--report", str(tmp_path / "report")]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and message in captured.err
    assert list(tmp_path.iterdir()) == []


def test_pip_is_asked_for_the_torch_that_the_project_pins() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert TWIN_NEEDS["torch"] in project["dependency-groups"]["reference"]


def test_the_bundled_model_is_verified_when_none_is_named_and_blocks_are_counted_on_a_terminal(
    capsys, monkeypatch
) -> None:
    monkeypatch.setattr("voicechat_mlx.verify.compare_everything", lambda *_: None)
    assert main(["verify", *SHORT]) == 0
    captured = capsys.readouterr()
    assert captured.err == "" and str(BUNDLED) in captured.out
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert main(["verify", *SHORT]) == 0
    assert "block/s" in capsys.readouterr().err


def test_neither_the_package_nor_its_report_brings_torch_or_matplotlib_along() -> None:
    code = """
import sys, voicechat_mlx.verify, voicechat_mlx.report.table, voicechat_mlx.cli.verify
assert not {"torch", "reference", "matplotlib"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
