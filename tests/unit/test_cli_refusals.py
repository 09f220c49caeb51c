"""Wrong input and failures: one line on stderr, the stated exit code, no traceback, no half-written file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fixtures.make_tiny import make
from tests.unit.cli_helpers import QUESTION, check_refused, place
from voicechat_mlx.checkpoint import BUNDLED
from voicechat_mlx.cli.__main__ import main
from voicechat_mlx.cli.common import BUNDLED_QUESTION
from voicechat_mlx.cli.outputs import check_model_is_kept, check_outputs

__all__ = ["place"]  # a fixture


# The command line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "required: COMMAND"),
        (["listen"], "'listen'"),
        (["generate"], r"required: --audio, --output-audio \(to try it out: --audio .*question\.wav\)"),
        (["generate", "--audio", QUESTION], "required: --output-audio"),
        (["trace", "--audio", QUESTION], "required: --output"),
        (["trace", "--output", "t.safetensors"], r"required: --audio \(to try it out"),
        (["generate", "--audio"], "expected one argument"),
    ],
)
def test_incomplete_command_lines_are_refused(place, capsys, words, message) -> None:
    check_refused(capsys, words, message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--image", "cat.png"], "unknown argument --image; `voicechat generate --help`"),
        (["--video", "cat.mp4"], "unknown argument --video"),
        (["--extra", "3"], "unknown argument --extra"),
        (["cat.wav"], "unknown argument cat.wav"),
        (["--extra-decoding-seconds", "-1"], "-1.0 seconds of silence cannot be appended"),
        (["--extra-decoding-seconds", "nan"], "nan seconds"),
        (["--extra-decoding-seconds", "inf"], "inf seconds"),
        (["--extra-decoding-seconds=-inf"], "-inf seconds"),
        (["--extra-decoding-seconds", "1e9"], "from 0 to 3600"),
        (["--extra-decoding-seconds", "three"], "'three' is not a number of seconds"),
        (["--seed", "-1"], "'-1' is not a whole number from 0"),
        (["--seed", "18446744073709551616"], "is not a whole number from 0"),
        (["--seed", "1.5"], "'1.5' is not a whole number from 0"),
        (["--seed", "٣"], "the seed '٣' is not a whole number from 0"),
        (["--seed", "1_0"], "the seed '1_0' is not a whole number from 0"),
        (["--seed", "9" * 300], f"the seed '{'9' * 40}…' is not a whole number from 0"),
        (["--seed", "9" * 9999], f"the seed '{'9' * 40}…' is not a whole number from 0"),
        (["--seed", ""], "the seed '' is not a whole number from 0"),
        (["--extra-decoding-seconds", "٣"], "'٣' is not a number of seconds"),
        (["--extra-decoding-seconds", "1_0"], "'1_0' is not a number of seconds"),
        (["--extra-decoding-seconds", "x" * 999], f"'{'x' * 40}…' is not a number of seconds"),
        (["--dtype", "x" * 999], f"invalid choice: '{'x' * 40}…'"),
        (["-n", "٣"], "'٣' is not a whole number"),
        (["-n", "9" * 9999], f"'{'9' * 40}…' is not a whole number"),
        (["--dtype", "float16"], "invalid choice: 'float16'"),
        (["--conventions", "rust"], "invalid choice: 'rust'"),
        (["-n", "many"], "'many' is not a whole number"),
        (["-p", "caf\udce9"], "the prompt is not valid UTF-8"),
    ],
)
def test_wrong_options_are_refused(place, capsys, options, message) -> None:
    check_refused(capsys, ["generate", "--audio", QUESTION, "--output-audio", "old.wav", *options], message)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        *(("generate", option) for option in ("-m", "--model", "--audio", "--output-audio", "--json", "--plot")),
        *(("trace", option) for option in ("-m", "--audio", "--output")),
        *(("verify", option) for option in ("-m", "--audio", "--report", "--against")),
        ("inspect", "-m"),
        ("convert", "--tokenizer"),
    ],
)
@pytest.mark.parametrize("separator", [" ", "="])
def test_an_empty_name_is_refused_by_the_name_of_its_option(place, capsys, command, option, separator) -> None:
    if separator == "=" and not option.startswith("--"):
        pytest.skip("-m= names a model called =")
    needed = {"generate": ["--audio", QUESTION, "--output-audio", "a.wav"], "convert": ["in", "out"]}
    needed["trace"] = ["--audio", QUESTION, "--output", "a.safetensors"]
    empty = [option, ""] if separator == " " else [f"{option}="]
    check_refused(capsys, [command, *needed.get(command, []), *empty], f"{option}.*: the name given is empty")


@pytest.mark.parametrize(("words", "name"), [(["", "out"], "SOURCE"), (["in", ""], "OUT")])
def test_an_empty_name_of_a_conversion_is_refused(place, capsys, words, name) -> None:
    check_refused(capsys, ["convert", *words], f"argument {name}: the name given is empty")


@pytest.mark.parametrize("words", [["--help"], ["generate", "--help"], ["generate", "--image", "x"], ["inspect", "-x"]])
def test_help_and_refusals_come_before_mlx_is_loaded(words) -> None:
    code = f"""
import sys
from voicechat_mlx.cli.__main__ import main
try:
    code = main({words!r})
except SystemExit as end:
    code = end.code
assert code == {0 if "--help" in words else 2}, code
assert not {{"mlx.core", "soundfile", "tokenizers", "huggingface_hub"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Sound

M4A = b"\0\0\0\x20ftypM4A \0\0\0\0M4A mp42isom\0\0\0\0" + bytes(99)
"""The first box of an MPEG-4 file."""
ADTS = (b"\xff\xf1\x60\x40\x06\x1f\xfc" + bytes(41)) * 9
"""Frames of AAC-LC, 16 kHz, mono, 48 bytes long."""


def write_bytes(name: str, content: bytes) -> Callable[[], str]:
    def write() -> str:
        Path(name).write_bytes(content)
        return name

    return write


def write_floats(*samples: float) -> Callable[[], str]:
    def write() -> str:
        soundfile.write("in.wav", np.float32(samples), 16000, subtype="FLOAT")
        return "in.wav"

    return write


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda: "none.wav", "none.wav does not exist"),
        (lambda: ".", "is a folder"),
        (lambda: os.devnull, "is a device"),
        (lambda: "old.wav/in.wav", "does not exist"),
        (write_bytes("in.wav", b""), "in.wav is empty"),
        (write_bytes("in.wav", b"These are words.\n" * 99), "in.wav cannot be decoded"),
        (write_bytes("in.mp3", b"ID3\x03" + bytes(99)), "in.mp3"),
        (write_bytes("a b.m4a", M4A), r"a b\.m4a cannot be decoded .*: ffmpeg -i 'a b\.m4a' out\.wav"),
        (write_bytes("in.aac", ADTS), r"in\.aac cannot be decoded .*: ffmpeg -i in\.aac out\.wav"),
        (write_floats(), "in.wav holds no samples"),
        (write_floats(0.0, 0.5, np.nan, np.inf), "in.wav: sample 2 is nan"),
        (write_floats(-np.inf), "in.wav: sample 0 is -inf"),
        (write_floats(1e30), "peaks at 1e"),
    ],
)
def test_unusable_recordings_are_refused(place, capsys, prepare, message) -> None:
    audio = prepare()
    check_refused(capsys, ["generate", "--audio", audio, "--output-audio", "old.wav"], message)
    check_refused(capsys, ["trace", "--audio", audio, "--output", "t.safetensors"], message)


def test_a_recording_without_read_permission_is_refused(place, capsys, monkeypatch) -> None:
    Path("in.wav").write_bytes(BUNDLED_QUESTION.read_bytes())
    whole = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "in.wav":
            raise PermissionError(13, "Permission denied")
        return whole(path)

    before = main(["generate", "--audio", "none.wav", "--output-audio", "old.wav"])
    capsys.readouterr()
    monkeypatch.setattr(Path, "read_bytes", refuse)  # the administrator may read everything, so no chmod
    assert main(["generate", "--audio", "in.wav", "--output-audio", "old.wav"]) == before == 2
    assert capsys.readouterr().err == "voicechat: in.wav may not be read; allow it with: chmod +r in.wav\n"


# Places to write


@pytest.mark.parametrize("option", ["--output-audio", "--json", "--plot"])
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("none/a", "the folder of none/a does not exist; make it with: mkdir -p"),
        (".", "is a folder; name a file in it"),
        ("old.wav/a", "does not exist"),
        ("x" * 300, "cannot be an output file"),
        (QUESTION, "both name"),
    ],
)
def test_unusable_output_places_are_refused(place, capsys, option, target, message) -> None:
    outputs = {"--output-audio": "old.wav", option: target}
    words = [word for pair in outputs.items() for word in pair]
    check_refused(capsys, ["generate", "--audio", QUESTION, *words], message)


def test_an_output_folder_that_is_not_writable_is_refused(place, capsys, monkeypatch) -> None:
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != place and real(path, mode))
    words = ["generate", "--audio", QUESTION, "--output-audio", "new.wav"]
    check_refused(capsys, words, "is not writable; choose another place for new.wav")


def test_one_file_for_two_outputs_is_refused(place, capsys) -> None:
    words = ["generate", "--audio", QUESTION, "--output-audio", "a", "--json", "./a"]
    check_refused(capsys, words, "--json and --output-audio both name ./a; choose another name")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["generate", "--output-audio", "a.mp3"],
            r"--output-audio a\.mp3 would not be a \.mp3 file; end its name in \.wav",
        ),
        (["generate", "--output-audio", "a", "--plot", "a.pdf"], r"--plot a\.pdf would not be a \.pdf file; .* \.png"),
        (["generate", "--output-audio", "a", "--plot", "a.png.jpg"], r"would not be a \.jpg file; .* \.png"),
        (["trace", "--output", "a.npz"], r"--output a\.npz would not be a \.npz file; end its name in \.safetensors"),
    ],
)
def test_an_output_whose_ending_promises_another_format_is_refused(place, capsys, words, message) -> None:
    check_refused(capsys, [*words, "--audio", QUESTION], message)


@pytest.mark.parametrize("name", ["a", "a.wav", "a.WAV", "my.answer/a", "stream.fifo", os.devnull])
def test_an_output_whose_ending_promises_nothing_else_is_accepted(place, name) -> None:
    Path("my.answer").mkdir()
    os.mkfifo("stream.fifo")
    check_outputs({"--output-audio": name, "--json": "any.txt", "--plot": None})


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "./tokenizer.json",
        "../model/model.safetensors",
        "new.safetensors",
        "model.safetensors.index.json",
    ],
)
@pytest.mark.parametrize("linked", [False, True])
def test_an_output_that_would_be_a_file_of_the_model_is_refused(place, capsys, name, linked) -> None:
    blobs = make(Path("blobs"), "fp32")
    if linked:  # as the Hub's cache has it: every file is a link to its content elsewhere
        Path("model").mkdir()
        for file in blobs.iterdir():
            Path("model", file.name).symlink_to(file.resolve())
    else:
        blobs.rename("model")
    message = f"model/{name} would be a file of the model itself"
    words = ["-m", "model", "--audio", QUESTION]
    check_refused(capsys, ["generate", *words, "--output-audio", "a", "--json", f"model/{name}"], message)
    if name.endswith(".safetensors"):
        check_refused(capsys, ["trace", *words, "--output", f"model/{name}"], message)


def test_the_bundled_model_is_no_output_and_other_files_beside_a_model_are(place, capsys) -> None:
    bundled = f"{BUNDLED}/config.json"
    words = ["generate", "--audio", QUESTION, "--output-audio", "a.wav", "--json", bundled]
    check_refused(capsys, words, "would be a file of the model itself")
    Path("model").mkdir()
    check_model_is_kept({"--output-audio": "model/answer.wav", "--json": "model/answer.json", "--plot": None}, "model")
    check_model_is_kept({"--json": "config.json"}, "model")
    check_model_is_kept({"--json": "config.json"}, "owner/name")


def test_the_help_tells_the_endings(capsys) -> None:
    for command, endings in (("generate", ("WAV", "PNG")), ("trace", (".safetensors",))):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        shown = capsys.readouterr().out
        assert all(ending in shown for ending in endings)


def test_a_picture_without_matplotlib_is_refused_with_the_command_that_installs_it(place, capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["generate", "--audio", QUESTION, "--output-audio", "old.wav", "--plot", "a.png"]
    check_refused(capsys, words, "--plot needs matplotlib; install it with: pip install")


# Checkpoints


@pytest.fixture(scope="module")
def sound_checkpoint(tmp_path_factory) -> Path:
    return make(tmp_path_factory.mktemp("made"), "4bit")


def change_config(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | values), encoding="utf-8")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json does not exist"),
    "empty config": (lambda folder: (folder / "config.json").write_text(""), "not readable JSON"),
    "config in prose": (lambda folder: (folder / "config.json").write_text("hello"), "not readable JSON"),
    "another model": (
        lambda folder: change_config(folder, model_type="llama"),
        "checkpoint/config.json: model_type is 'llama'",
    ),
    "another speaker": (
        lambda folder: change_config(folder, speaker="Bob"),
        "checkpoint/config.json: speaker is 'Bob'",
    ),
    "few pieces": (lambda folder: change_config(folder, rnnt_vocabulary=["a"]), "RNNT vocabulary"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "a shard missing": (lambda folder: (folder / SHARDS[0]).unlink(), "is missing but .* names it"),
    "a shard cut short": (lambda folder: cut(folder / SHARDS[1]), "is truncated"),
    "unlisted modules": (
        lambda folder: change_config(folder, quantization=None, quantization_config=None),
        "quantization map does not list it",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_checkpoints_are_refused(sound_checkpoint, tmp_path, monkeypatch, capsys, damage) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for path in sound_checkpoint.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    apply, message = DAMAGE[damage]
    apply(folder)
    monkeypatch.chdir(tmp_path)
    words = ["-m", "checkpoint"]
    check_refused(capsys, ["generate", *words, "--audio", QUESTION, "--output-audio", "a.wav"], message)


@pytest.mark.parametrize("command", ["generate", "inspect"])
@pytest.mark.parametrize(("model", "message"), [("none/of/these", "does not exist"), (QUESTION, "is a file")])
def test_models_that_are_not_there_are_refused(tmp_path, monkeypatch, capsys, command, model, message) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--audio", QUESTION, "--output-audio", "a.wav"] if command == "generate" else []
    check_refused(capsys, [command, "-m", model, *words], message)
