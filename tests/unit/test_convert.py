"""Converting: what is written, number by number, and that a second pass changes nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from safetensors.torch import load_file

from fixtures.make_tiny import make
from tests.publisher import make_publisher
from voicechat_mlx.checkpoint import Checkpoint
from voicechat_mlx.cli.__main__ import main
from voicechat_mlx.cli.common import BUNDLED_QUESTION
from voicechat_mlx.convert import Options, convert, plan_conversion
from voicechat_mlx.errors import CheckpointError, ConfigError
from voicechat_mlx.safetensors_header import read_header

PLAIN, FOUR_BITS = Options(), Options(bits=4)
WIDE = {
    "tts_config": {"hidden_size": 64, "character_encoder": {"hidden_size": 64}},
    "audio_config": {"encoder": {"d_model": 64, "n_heads": 4}, "joint": {"encoder_hidden": 64}},
}
"""Widths that a group of 64 divides, in talker and perception too."""


def made(source: Path, out: Path, options: Options = PLAIN, **more: object) -> Path:
    return convert(plan_conversion(source, options, **more), out)


def tensors(folder: Path) -> dict[str, mx.array]:
    return Checkpoint.open(folder).tensors()


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def edit(folder: Path, change: Callable[[dict[str, mx.array]], object]) -> Path:
    path = folder / "model.safetensors"
    loaded = mx.load(str(path))
    change(loaded)
    mx.eval(loaded)
    mx.save_safetensors(str(path), loaded)
    return folder


@pytest.fixture(scope="module")
def publisher(tmp_path_factory) -> tuple[Path, Path]:
    return make_publisher(tmp_path_factory.mktemp("made"))


# Numbers


def test_the_publishers_file_in_float32_is_the_published_layout_by_numbers(publisher, tiny_fp32, tmp_path) -> None:
    source, base = publisher
    ours, expected = tensors(made(source, tmp_path / "out", Options(dtype="fp32"), tokenizer=base)), tensors(tiny_fp32)
    extra = "tts_model.tts_model.audio_prompt_projection_W"
    assert ours.keys() - {extra} == expected.keys()
    assert all(mx.array_equal(ours[name], expected[name]) for name in expected)
    assert {str(ours[name].dtype) for name in expected} == {"mlx.core.float32", "mlx.core.int32"}


@pytest.mark.parametrize("from_publisher", [True, False])
def test_four_bits_are_those_of_the_published_layout(publisher, tiny_bf16, tiny_4bit, tmp_path, from_publisher) -> None:
    source, base = publisher if from_publisher else (tiny_bf16, None)
    ours, expected = tensors(made(source, tmp_path / "out", FOUR_BITS, tokenizer=base)), tensors(tiny_4bit)
    exponents = {name for name in expected if name.endswith((".A_log", ".D", ".dt_bias"))}
    for name in expected.keys() - exponents:
        assert ours[name].dtype == expected[name].dtype, name
        assert mx.array_equal(ours[name], expected[name]), name
    assert {ours[name].dtype for name in exponents} == {mx.float32}
    theirs = json.loads((tiny_4bit / "config.json").read_text(encoding="utf-8"))
    written = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert written["quantization"] == written["quantization_config"] == theirs["quantization"]


def test_exponents_of_the_recurrence_keep_every_digit(publisher, tiny_fp32, tmp_path) -> None:
    source, base = publisher
    ours, expected = tensors(made(source, tmp_path / "out", tokenizer=base)), tensors(tiny_fp32)
    name = "stt_model.llm.layers.0.mixer.A_log"
    assert mx.array_equal(ours[name], expected[name])
    assert not mx.array_equal(expected[name], expected[name].astype(mx.bfloat16).astype(mx.float32))


def test_eight_bits_in_groups_of_32_stay_closer_to_the_weights_than_four_in_64(tiny_fp32, tmp_path) -> None:
    weight, errors = tensors(tiny_fp32)["stt_model.lm_head.weight"], []
    for bits, group_size in ((4, 64), (8, 32)):
        out = made(tiny_fp32, tmp_path / str(bits), Options(bits=bits, group_size=group_size))
        parts = [tensors(out)[f"stt_model.lm_head.{part}"] for part in ("weight", "scales", "biases")]
        assert parts[0].shape == (389, 64 * bits // 32) and parts[1].shape == (389, 64 // group_size)
        near = mx.dequantize(*parts, group_size=group_size, bits=bits).astype(mx.float32)
        errors.append(float(mx.abs(near - weight).max()) / float(mx.abs(weight).max()))
    assert errors[0] < 1 / 10  # half a step of 2 · max / 15, and room for the scale that MLX moves to keep zero exact
    assert errors[1] < errors[0] / 8


# The way a person goes


def test_convert_inspect_and_generate_work_from_the_publishers_file_to_four_bits(publisher, tmp_path, capsys) -> None:
    source, base = publisher
    out = str(tmp_path / "4bit")
    assert main(["convert", str(source), out, "--bits", "4", "--tokenizer", str(base)]) == 0
    printed = capsys.readouterr()
    assert "quantised    17 modules at 4 bits in groups of 64" in printed.out and printed.err == ""
    assert main(["inspect", "-m", out]) == 0
    assert "problems    none" in capsys.readouterr().out
    answer = ["--audio", str(BUNDLED_QUESTION), "--output-audio", f"{tmp_path}/a.wav", "--extra-decoding-seconds", "0"]
    assert main(["generate", "-m", out, *answer]) == 0
    assert capsys.readouterr().out.startswith("[user] ")
    assert (tmp_path / "a.wav").stat().st_size > 1764 * 2


def test_talker_and_perception_in_four_bits_answer_with_the_rows_that_are_read_singly_left_dense(tmp_path) -> None:
    source, out = make(tmp_path / "bf16", "bf16", **WIDE), str(tmp_path / "out")
    assert main(["convert", str(source), out, "--quantize", "llm,talker,perception"]) == 0
    listed = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))["quantization"]
    head = "tts_model.tts_model.mog_head"
    assert f"{head}.proj_logits" in listed and f"{head}.proj_mus" not in listed and f"{head}.proj_logs" not in listed
    assert "tts_model.tts_model.backbone.layers.0.self_attn.q_proj" in listed
    assert "stt_model.perception.encoder.layers.0.feed_forward1.linear1" in listed
    assert not any(path.startswith(("stt_model.rnnt", "tts_model.audio_codec")) for path in listed)
    answer = ["--audio", str(BUNDLED_QUESTION), "--output-audio", f"{tmp_path}/a.wav", "--extra-decoding-seconds", "0"]
    assert main(["generate", "-m", out, *answer]) == 0


def test_modules_whose_width_no_group_divides_stay_dense_and_are_named(tiny_bf16) -> None:
    plan = plan_conversion(tiny_bf16, Options(bits=4, networks=("talker", "llm")))
    assert "tts_model.tts_model.embed_code" in plan.left_dense
    assert plan.quantization is not None and len(plan.quantization.modules) == 17


def test_a_dry_run_tells_and_writes_nothing(tiny_bf16, tmp_path, capsys) -> None:
    assert main(["convert", str(tiny_bf16), str(tmp_path / "out"), "--bits", "8", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "17 modules at 8 bits" in printed and "nothing was written" in printed
    assert list(tmp_path.iterdir()) == []


# Twice


@pytest.mark.parametrize("limit", [10**9, 200_000])
def test_converting_twice_or_what_was_converted_changes_no_byte(publisher, tmp_path, limit) -> None:
    source, base = publisher
    first = made(source, tmp_path / "1", FOUR_BITS, tokenizer=base, max_shard_bytes=limit)
    before = contents(first)
    assert contents(made(source, tmp_path / "2", FOUR_BITS, tokenizer=base, max_shard_bytes=limit)) == before
    assert contents(made(first, tmp_path / "3", FOUR_BITS, max_shard_bytes=limit)) == before
    assert contents(made(first, tmp_path / "4", max_shard_bytes=limit)) == before
    assert contents(made(source, first, FOUR_BITS, tokenizer=base, max_shard_bytes=limit)) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "3", "4"]


def test_torch_kernels_turn_once_and_then_stay(tiny_torch_layout, tiny_fp32, tmp_path) -> None:
    plan = plan_conversion(tiny_torch_layout, Options(dtype="fp32"))
    assert plan.permuted > 0
    once = convert(plan, tmp_path / "once")
    assert plan_conversion(once, Options(dtype="fp32")).permuted == 0
    expected = tensors(tiny_fp32)
    assert all(mx.array_equal(tensors(once)[name], expected[name]) for name in expected)


def test_quantising_again_in_another_way_is_refused_with_the_advice_to_take_the_original(tiny_4bit) -> None:
    with pytest.raises(CheckpointError, match=r"quantised already, in 4 bits in groups of 64; to get 8 bits"):
        plan_conversion(tiny_4bit, Options(bits=8))


# Files


def test_shards_keep_to_the_limit_and_the_index_finds_every_tensor(tiny_bf16, tmp_path) -> None:
    out = made(tiny_bf16, tmp_path / "out", FOUR_BITS, max_shard_bytes=300_000)
    index = json.loads((out / "model.safetensors.index.json").read_text(encoding="utf-8"))
    files = sorted(out.glob("*.safetensors"))
    assert len(files) > 3 and files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    headers = {path.name: read_header(path) for path in files}
    assert index["weight_map"] == {name: file for file, header in headers.items() for name in header}
    loaded = tensors(out)
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in loaded.values())
    assert all(sum(loaded[name].nbytes for name in header) <= 300_000 for header in headers.values())


def test_every_tensor_is_aligned_so_that_torch_can_map_the_files(tiny_bf16, tmp_path) -> None:
    out = made(tiny_bf16, tmp_path / "out", FOUR_BITS)
    content = (out / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    entries = json.loads(content[8 : 8 + length])
    sizes = {"BF16": 2, "F32": 4, "I32": 4, "U32": 4}
    for name, entry in entries.items():
        assert name == "__metadata__" or (8 + length + entry["data_offsets"][0]) % sizes[entry["dtype"]] == 0
    by_torch, by_mlx = load_file(out / "model.safetensors"), tensors(out)
    name = "tts_model.tts_model.rvq_embs"
    assert by_torch.keys() == by_mlx.keys()
    assert by_torch[name].float().tolist() == by_mlx[name].astype(mx.float32).tolist()


def test_the_checksums_are_those_of_the_files(publisher, tmp_path) -> None:
    source, base = publisher
    out = made(source, tmp_path / "out", tokenizer=base)
    lines = (out / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    listed = {file: digest for digest, file in (line.split("  ") for line in lines)}
    found = contents(out)
    assert listed == {file: digest for file, digest in found.items() if file != "SHA256SUMS"}
    assert {"README.md", "tokenizer.json", "tokenizer_config.json", "rnnt_tokenizer/tokenizer.vocab"} <= listed.keys()


def test_no_more_than_one_tensor_and_what_becomes_of_it_is_held(tmp_path) -> None:
    layers = {"num_hidden_layers": 40, "hybrid_override_pattern": "-" * 40, "intermediate_size": 3200}
    source = make(tmp_path / "source", "fp32", text_config=layers)
    plan = plan_conversion(source, FOUR_BITS)
    largest = 4 * 3200 * 64
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    convert(plan, tmp_path / "out")
    assert mx.get_peak_memory() - before < 5 * largest
    assert (source / "model.safetensors").stat().st_size > 60 * largest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float16"}, "dtype 'float16' is unknown"),
        ({"bits": 3}, "3 bits cannot be chosen"),
        ({"bits": 4, "group_size": 16}, "group size of 16"),
        ({"bits": 4, "networks": ("llm", "codec")}, "codec cannot be quantised; choose from llm, talker, perception"),
    ],
)
def test_choices_that_are_not_offered_are_refused(options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        Options(**options)
