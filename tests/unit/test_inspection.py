"""`inspect` tells what is in a checkpoint, names everything that is wrong at once, and what it would need."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import pytest

from fixtures.make_tiny import make
from voicechat_mlx.checkpoint import BUNDLED
from voicechat_mlx.cli.__main__ import main
from voicechat_mlx.inspection import inspect_checkpoint


def rewrite(folder: Path, change) -> None:
    tensors = mx.load(str(folder / "model.safetensors"))
    change(tensors)
    mx.save_safetensors(str(folder / "new.safetensors"), tensors)
    (folder / "new.safetensors").replace(folder / "model.safetensors")


def test_a_sound_checkpoint_has_no_problems_and_every_tensor_is_counted_once(tmp_path) -> None:
    folder = make(tmp_path, "fp32")
    inspection = inspect_checkpoint(folder)
    tensors = mx.load(str(folder / "model.safetensors"))
    assert inspection.problems == ()
    assert set(inspection.report.networks) == {"perception", "rnnt", "llm", "talker", "codec"}
    assert sum(network.tensors for network in inspection.report.networks.values()) == len(tensors)
    stored = sum(network.bytes for network in inspection.report.networks.values())
    assert stored == sum(tensor.nbytes for tensor in tensors.values())
    assert inspection.memory["float32"].weights == stored
    assert inspection.files == {"model.safetensors": (folder / "model.safetensors").stat().st_size}


def test_a_quantised_checkpoint_counts_the_same_parameters_in_fewer_bytes(tmp_path) -> None:
    plain = inspect_checkpoint(make(tmp_path / "bf16", "bf16")).report
    packed = inspect_checkpoint(make(tmp_path / "4bit", "4bit")).report
    assert packed.networks["llm"].parameters == plain.networks["llm"].parameters
    assert packed.networks["llm"].bytes < plain.networks["llm"].bytes
    assert set(packed.quantised.values()) == {(64, 4)}
    assert {"embed_tokens", "lm_head", "function_head"} <= set(packed.quantised)


def test_everything_that_is_wrong_is_named_at_once_and_the_exit_code_is_2(tmp_path, capsys) -> None:
    folder = make(tmp_path, "fp32")

    def damage(tensors: dict[str, mx.array]) -> None:
        tensors["stt_model.lm_heat.weight"] = tensors.pop("stt_model.lm_head.weight")
        tensors["stt_model.perception.proj.weight"] = mx.zeros_like(tensors["stt_model.perception.proj.weight"])
        tensors["stt_model.llm.norm_f.weight"] = mx.array([float("nan")] * 64)

    rewrite(folder, damage)
    assert main(["inspect", "-m", str(folder)]) == 2
    captured = capsys.readouterr()
    for expected in (
        "missing     1: stt_model.lm_head.weight",
        "extra       1: stt_model.lm_heat.weight",
        "  stt_model.perception.proj.weight holds only zeros",
        "  stt_model.llm.norm_f.weight holds NaN or infinity",
    ):
        assert expected in captured.out
    assert captured.err.startswith("voicechat: ") and captured.err.count("\n") == 1
    assert "cannot be used" in captured.err and "3 more" in captured.err


@pytest.mark.parametrize("variant", ["fp32", "bf16", "torch-layout", "4bit"])
def test_every_variant_is_described(tmp_path, capsys, variant) -> None:
    folder = make(tmp_path, variant)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "trainer_seed": 7}), encoding="utf-8")
    assert main(["inspect", "-m", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "trainer_seed" in printed
    assert "problems    none" in printed
    assert "MLX 0" in printed
    if variant == "4bit":
        assert "at 4 bits in groups of 64" in printed
    if variant == "torch-layout":
        assert "tts_model.tts_model.audio_prompt_projection_W" in printed
        assert "layout      0 kernels" not in printed


def test_the_bundled_model_can_be_inspected(capsys) -> None:
    assert main(["inspect"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{BUNDLED}\n") and "problems    none" in captured.out
    assert captured.err == ""


def test_an_index_that_leads_beyond_its_table_is_a_problem(tmp_path, capsys) -> None:
    folder, name = make(tmp_path, "fp32"), "tts_model.codec_silence_tokens"
    rewrite(folder, lambda tensors: tensors.update({name: mx.full((31,), 10**9, mx.int32)}))
    assert main(["inspect", "-m", str(folder)]) == 2
    assert f"{name} holds 1000000000; expected 0 to 28" in capsys.readouterr().out
