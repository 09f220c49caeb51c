"""What can be wrong with a checkpoint's files, each fault with its own line."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import pytest
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

from voicechat_mlx import checkpoint as module
from voicechat_mlx.checkpoint import Checkpoint, bundled_folder, name_of
from voicechat_mlx.errors import CheckpointError, ConfigError, InputError
from voicechat_mlx.safetensors_header import TensorHeader, read_header

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def copy(folder: Path, target: Path) -> Path:
    return Path(shutil.copytree(folder, target / "copy"))


def refusal(folder: str | Path, kind: type[InputError] = CheckpointError) -> str:
    with pytest.raises(kind) as error:
        Checkpoint.open(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


def edit_json(path: Path, change) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(json.dumps(values), encoding="utf-8")


def test_every_variant_opens_with_all_its_tensors(tiny_fp32, tiny_bf16, tiny_torch_layout, tiny_4bit) -> None:
    for folder in (tiny_fp32, tiny_bf16, tiny_torch_layout, tiny_4bit):
        checkpoint = Checkpoint.open(folder)
        tensors = checkpoint.tensors()
        assert {name: tensor.shape for name, tensor in tensors.items()} == checkpoint.tensor_names_and_shapes()
        assert checkpoint.tokenizer == folder / "tokenizer.json"
        assert checkpoint.rnnt_vocabulary[:3] == ("<unk>", "<pad>", "<s>")
        assert len(checkpoint.rnnt_vocabulary) == 64
        assert not checkpoint.is_bundled


def test_nothing_named_is_the_bundled_model() -> None:
    checkpoint = Checkpoint.open()
    assert checkpoint.is_bundled
    assert checkpoint.folder.name == "voicechat-nano"


def test_the_bundled_model_is_among_the_fixtures_of_a_checkout_and_inside_an_installed_package(tmp_path) -> None:
    package = tmp_path / "voicechat_mlx"
    (tmp_path / "fixtures" / "voicechat-nano").mkdir(parents=True)
    assert bundled_folder(package) == tmp_path / "fixtures" / "voicechat-nano"
    (package / "bundled" / "voicechat-nano").mkdir(parents=True)
    assert bundled_folder(package) == package / "bundled" / "voicechat-nano"


# --- which folder ---


def test_a_missing_folder_is_named() -> None:
    assert refusal("/nowhere/model").startswith("'/nowhere/model' does not exist")


def test_a_file_in_place_of_a_folder_is_named(tiny_fp32) -> None:
    assert "is a file; give the folder" in refusal(tiny_fp32 / "model.safetensors")


@pytest.mark.parametrize("name", ["", "a/b/c", "../model", "x" * 5000, "nul\0"])
def test_a_name_that_can_be_no_folder_and_no_hub_id_is_refused(name) -> None:
    assert "give a checkpoint folder or a Hub id" in refusal(name)


def test_a_hub_id_is_downloaded_without_the_files_that_are_not_used(monkeypatch, tiny_fp32) -> None:
    asked = {}

    def download(repository: str, *, allow_patterns: list[str]) -> str:
        asked.update(repository=repository, patterns=allow_patterns)
        return str(tiny_fp32)

    monkeypatch.setattr(module, "snapshot_download", download)
    assert Checkpoint.open("owner/Voice-Chat.4bit").folder == tiny_fp32
    assert asked["repository"] == "owner/Voice-Chat.4bit"
    needed = {"config.json", "*.safetensors", INDEX, "tokenizer.json", "rnnt_tokenizer/vocab.json"}
    assert set(asked["patterns"]) == needed


def hub_error(kind: type[HfHubHTTPError]) -> HfHubHTTPError:
    return kind("404 Client Error.\nand more", response=SimpleNamespace(headers={}, request=None))


def offline() -> LocalEntryNotFoundError:
    """As the client tells it: a remark on its cache, caused by the lost connection."""
    error = LocalEntryNotFoundError("cannot find the snapshot folder")
    error.__cause__ = ConnectionError("Name or service not known\nand more")
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (offline(), "the Hub could not be reached (Name or service not known); check the network, or give the"),
        (OSError("no network\nand more"), "the Hub could not be reached (no network); check the network"),
        (TimeoutError(), "the Hub could not be reached (TimeoutError); check the network"),
        (hub_error(RepositoryNotFoundError), "the Hub has no such model; check the spelling, or for a private one"),
        (hub_error(GatedRepoError), "on the Hub it is gated; accept its terms"),
        (hub_error(HfHubHTTPError), "the Hub refused to give it (404 Client Error.)"),
        (OSError(errno.ENOSPC, "No space left"), "its download could not be stored ([Errno 28] No space left); make"),
    ],
)
def test_a_hub_id_that_cannot_be_downloaded_is_refused_in_one_line_that_tells_why(monkeypatch, error, message) -> None:
    def download(repository: str, *, allow_patterns: list[str]) -> str:
        raise error

    monkeypatch.setattr(module, "snapshot_download", download)
    assert refusal("owner/model").startswith(f"owner/model is not a folder, and {message}")


# --- config.json ---


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "config.json does not exist"),
        ("", "is not readable JSON"),
        ("{", "is not readable JSON"),
        ("[]", "must hold a JSON object"),
        ("{}", "model_type is 'no model_type'"),
        ('{"model_type": "nemotron_h"}', "model_type is 'nemotron_h'; only 'nemotron_voicechat'"),
        ('{"model_type": "nemotron_voicechat", "speaker": "Bob"}', "speaker is 'Bob'; only 'Aria' is implemented"),
    ],
)
def test_a_config_that_cannot_be_used_is_refused(tiny_fp32, tmp_path, text, message) -> None:
    folder = copy(tiny_fp32, tmp_path)
    (folder / "config.json").unlink() if text is None else (folder / "config.json").write_text(text)
    assert message in refusal(folder, ConfigError)


# --- weight files ---


def test_no_weights_at_all_are_refused(tiny_fp32, tmp_path) -> None:
    folder = copy(tiny_fp32, tmp_path)
    (folder / "model.safetensors").unlink()
    assert "has no *.safetensors file" in refusal(folder)


def test_shards_are_found_without_an_index(tiny_4bit, tmp_path) -> None:
    folder = copy(tiny_4bit, tmp_path)
    (folder / INDEX).unlink()
    assert Checkpoint.open(folder).tensor_names_and_shapes() == Checkpoint.open(tiny_4bit).tensor_names_and_shapes()


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("shard", [FIRST, SECOND])
def test_a_missing_shard_is_named(tiny_4bit, tmp_path, shard, with_index) -> None:
    folder = copy(tiny_4bit, tmp_path)
    (folder / shard).unlink()
    if not with_index:
        (folder / INDEX).unlink()
    message = refusal(folder)
    assert message.startswith(f"{folder / shard} is missing") and "download" in message


def test_a_tensor_that_the_index_names_but_its_shard_lacks_is_named(tiny_4bit, tmp_path) -> None:
    folder = copy(tiny_4bit, tmp_path)
    edit_json(folder / INDEX, lambda values: values["weight_map"].update({"stt_model.ghost.weight": FIRST}))
    assert f"places stt_model.ghost.weight in {FIRST}, which does not hold it" in refusal(folder)


def test_a_shard_that_the_index_names_but_is_absent_is_named(tiny_4bit, tmp_path) -> None:
    folder = copy(tiny_4bit, tmp_path)
    edit_json(folder / INDEX, lambda values: values["weight_map"].update({"ghost": "third.safetensors"}))
    assert "third.safetensors is missing" in refusal(folder)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": "../x"}}', '{"weight_map": {"a": 3}}']
)
def test_an_index_that_is_no_index_is_named(tiny_4bit, tmp_path, text) -> None:
    folder = copy(tiny_4bit, tmp_path)
    (folder / INDEX).write_text(text)
    assert INDEX in refusal(folder)


def test_a_tensor_in_two_files_is_named_with_both(tiny_4bit, tmp_path) -> None:
    folder = copy(tiny_4bit, tmp_path)
    (folder / INDEX).unlink()
    shutil.copyfile(folder / FIRST, folder / "model.safetensors")
    message = refusal(folder)
    assert FIRST in message and "model.safetensors" in message and "remove one" in message


@pytest.mark.parametrize("kept", [0.999, 0.5])
def test_a_file_cut_in_its_data_is_truncated(tiny_fp32, tmp_path, kept) -> None:
    folder = copy(tiny_fp32, tmp_path)
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    assert f"is truncated: {int(len(whole) * kept)} bytes of {len(whole)}; download it again" in refusal(folder)


def test_a_file_cut_in_its_header_is_truncated(tiny_fp32, tmp_path) -> None:
    folder = copy(tiny_fp32, tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    assert "is truncated: its header alone is" in refusal(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n",
        (9).to_bytes(8, "little") + b"not json!",
        (2).to_bytes(8, "little") + b"[]",
        (11).to_bytes(8, "little") + b'{"a": "no"}',
    ],
)
def test_a_file_that_is_not_safetensors_is_named(tmp_path, content) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="is not a safetensors file") as error:
        read_header(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_the_header_tells_shape_and_type_of_every_tensor(tmp_path) -> None:
    path = tmp_path / "model.safetensors"
    mx.save_safetensors(str(path), {"a": mx.zeros((2, 3), mx.bfloat16), "b": mx.array(5)}, {"format": "mlx"})
    assert read_header(path) == {
        "a": TensorHeader(dtype="BF16", shape=(2, 3)),
        "b": TensorHeader(dtype="I32", shape=()),
    }


# --- tokenizer and vocabulary ---


def test_a_missing_tokenizer_is_named_with_where_to_get_it(tiny_fp32, tmp_path) -> None:
    folder = copy(tiny_fp32, tmp_path)
    (folder / "tokenizer.json").unlink()
    message = refusal(folder)
    assert message.startswith(f"{folder / 'tokenizer.json'} is missing") and "NVIDIA-Nemotron-Nano-9B-v2" in message


@pytest.mark.parametrize("count", [0, 63, 65])
def test_a_vocabulary_of_the_wrong_length_is_refused_with_both_lengths(tiny_torch_layout, tmp_path, count) -> None:
    folder = copy(tiny_torch_layout, tmp_path)
    pieces = [str(number) for number in range(count)]
    (folder / "rnnt_tokenizer" / "vocab.json").write_text(json.dumps(pieces))
    assert f"has {count} pieces; expected 64" in refusal(folder)


def test_a_vocabulary_of_the_wrong_length_in_the_config_is_refused(tiny_fp32, tmp_path) -> None:
    folder = copy(tiny_fp32, tmp_path)
    edit_json(folder / "config.json", lambda values: values["rnnt_vocabulary"].pop())
    assert "has 63 pieces; expected 64" in refusal(folder)


def test_a_vocabulary_may_be_a_list_or_a_map_from_piece_to_id(tiny_torch_layout, tmp_path) -> None:
    folder = copy(tiny_torch_layout, tmp_path)
    path = folder / "rnnt_tokenizer" / "vocab.json"
    from_map = Checkpoint.open(folder).rnnt_vocabulary
    path.write_text(json.dumps(list(from_map)))
    assert Checkpoint.open(folder).rnnt_vocabulary == from_map
    backwards = dict(reversed([(piece, id) for id, piece in enumerate(from_map)]))
    path.write_text(json.dumps(backwards))
    assert Checkpoint.open(folder).rnnt_vocabulary == from_map


def test_an_empty_list_in_the_config_leaves_the_file_to_speak(tiny_torch_layout, tmp_path) -> None:
    folder = copy(tiny_torch_layout, tmp_path)
    edit_json(folder / "config.json", lambda values: values.update(rnnt_vocabulary=[]))
    assert len(Checkpoint.open(folder).rnnt_vocabulary) == 64


@pytest.mark.parametrize("text", ["", "3", "[1, 2]", '{"a": 0, "b": 2}', '{"a": 0, "b": 0}', '{"a": "x"}'])
def test_a_vocabulary_that_is_neither_is_refused_by_name(tiny_torch_layout, tmp_path, text) -> None:
    folder = copy(tiny_torch_layout, tmp_path)
    (folder / "rnnt_tokenizer" / "vocab.json").write_text(text)
    assert "vocab.json" in refusal(folder)


def test_no_vocabulary_anywhere_is_refused(tiny_torch_layout, tmp_path) -> None:
    folder = copy(tiny_torch_layout, tmp_path)
    shutil.rmtree(folder / "rnnt_tokenizer")
    assert "config.json has no rnnt_vocabulary" in refusal(folder)


# --- forged files ---


def forged(path: Path, entries: dict, data: bytes) -> Path:
    text = json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(start: int, end: int, *shape: int, dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("entries", "size", "message"),
    [
        ({"a": entry(0, 8, 2), "b": entry(4, 12, 2)}, 12, "b lies at bytes 4 to 12, expected from 8 on"),
        ({"a": entry(0, 8, 2), "b": entry(0, 8, 2)}, 8, "b lies at bytes 0 to 8, expected from 8 on"),
        ({"a": entry(0, 8, 2), "b": entry(12, 20, 2)}, 20, "b lies at bytes 12 to 20, expected from 8 on"),
        ({"a": entry(4, 12, 2)}, 12, "a lies at bytes 4 to 12, expected from 0 on"),
        ({"a": entry(-8, 0, 2)}, 8, "a lies at bytes -8 to 0, expected from 0 on"),
        ({"a": entry(0, -8, 2)}, 8, "a lies at bytes 0 to -8, expected from 0 on"),
        ({"a": entry(0, 8, 10**12)}, 8, "a has 8 bytes, expected 4000000000000 for F32 (1000000000000,)"),
        ({"a": entry(0, 8, 2, dtype="I64")}, 8, "a has 8 bytes, expected 16 for I64 (2,)"),
        ({"a": entry(0, 8, 2)}, 9, "bytes instead of"),
        ({"a": entry(0, 8, -2)}, 8, "is not a safetensors file"),
        ({"a": entry(0, 8.5, 2)}, 9, "is not a safetensors file"),
    ],
)
def test_tensors_that_overlap_leave_gaps_or_have_another_size_are_refused(tmp_path, entries, size, message) -> None:
    with pytest.raises(CheckpointError) as error:
        read_header(forged(tmp_path / "model.safetensors", entries, bytes(size)))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_tensor_without_numbers_and_one_after_it_are_sound(tmp_path) -> None:
    entries = {"__metadata__": {}, "b": entry(0, 8, 2), "a": entry(0, 0, 0), "c": entry(8, 8, 3, 0)}
    header = read_header(forged(tmp_path / "model.safetensors", entries, bytes(8)))
    assert header["c"] == TensorHeader(dtype="F32", shape=(3, 0))


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("file", [INDEX, "rnnt_tokenizer/vocab.json"])
def test_json_that_is_nested_too_deeply_is_refused(tiny_torch_layout, tmp_path, file) -> None:
    folder = copy(tiny_torch_layout, tmp_path)
    (folder / file).write_text(DEEP)
    assert f"{folder / file} is not readable JSON" in refusal(folder)


def test_a_header_that_is_nested_too_deeply_is_refused(tmp_path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(DEEP).to_bytes(8, "little") + DEEP.encode())
    with pytest.raises(CheckpointError, match="is not a safetensors file"):
        read_header(path)


def test_a_folder_is_named_without_the_way_to_it(tmp_path, monkeypatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path / "model")
    assert name_of(f"{tmp_path}/model/") == name_of(".") == "model"
    assert name_of("someone/model-4bit") == "someone/model-4bit"
    assert name_of(None) == "voicechat-nano"
