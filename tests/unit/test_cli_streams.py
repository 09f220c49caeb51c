"""Standard streams that are closed, full or unread, and outputs that are pipes: nothing is lost, nothing is added."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image
from safetensors.numpy import load

from fixtures.make_tiny import make
from voicechat_mlx.cli.__main__ import main

ROOT = Path(__file__).parents[2]
COMMAND = f"{sys.executable} -m voicechat_mlx.cli"
FULL = "/dev/full"
needs_full = pytest.mark.skipif(not os.path.exists(FULL), reason="this system has no device that is always full")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return make(tmp_path_factory.mktemp("checkpoint"), "fp32")


@pytest.fixture
def shell(checkpoint, tmp_path):
    """Runs bash in `tmp_path`; `$generate` there is the command with a short question, `$voicechat` any command."""
    question = tmp_path / "in.wav"
    soundfile.write(question, np.full(3200, 0.1), 16000)
    options = f"-m {checkpoint} --audio {question} --extra-decoding-seconds 0"
    words = {"voicechat": COMMAND, "generate": f"{COMMAND} generate {options}", "trace": f"{COMMAND} trace {options}"}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment = {**kept, **words, "model": str(checkpoint), "PYTHONPATH": str(ROOT)}

    def run(script: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["bash", "-c", script], capture_output=True, cwd=tmp_path, env=environment)

    return run


def check_answer(folder: Path, wav: str = "a.wav", ids: str = "a.json") -> None:
    assert soundfile.info(folder / wav).frames == json.loads((folder / ids).read_text())["frames"] * 1764


# Output that nobody takes


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("stream", ["|", "2>&1 |"])
def test_a_reader_that_stops_listening_costs_no_file_and_no_message(shell, tmp_path, unbuffered, stream) -> None:
    start = f"export PYTHONUNBUFFERED={unbuffered}; $generate --output-audio a.wav --json a.json"
    done = shell(f"{start} {stream} true; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (1, b"")
    check_answer(tmp_path)


@pytest.mark.parametrize("words", ["--help", "--version", "inspect -m $model"])
def test_every_command_is_quiet_when_its_reader_left(shell, words) -> None:
    done = shell(f"$voicechat {words} | true; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (1, b"")


@needs_full
def test_a_full_output_is_one_line_and_loses_no_file(shell, tmp_path) -> None:
    done = shell("$generate --output-audio a.wav --json a.json > /dev/full")
    assert (done.returncode, done.stderr) == (
        1,
        b"voicechat: standard output was not written: No space left on device\n",
    )
    check_answer(tmp_path)


@needs_full
@pytest.mark.parametrize("words", ["--help", "--version", "inspect -m $model"])
def test_a_full_output_is_one_line_of_every_command(shell, words) -> None:
    done = shell(f"$voicechat {words} > /dev/full")
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert done.stderr.startswith(b"voicechat: standard output was not written: ")


@needs_full
def test_messages_that_cannot_be_written_change_no_exit_code(shell, tmp_path) -> None:
    start = "$generate --output-audio a.wav --json a.json"
    assert shell(f"{start} --debug 2> /dev/full").returncode == 0
    check_answer(tmp_path)
    assert shell("$voicechat generate 2> /dev/full").returncode == 2
    assert shell("$voicechat generate --debug 2> /dev/full").returncode == 2


@needs_full
def test_a_file_that_is_not_written_is_told_even_when_the_texts_cannot_be_shown(shell) -> None:
    done = shell("PYTHONUNBUFFERED=1 $generate --output-audio /dev/full > /dev/full")
    assert (done.returncode, done.stderr) == (
        1,
        b"voicechat: /dev/full was not written: No space left on device\n",
    )


# Streams that are closed


@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_break_no_command(shell, tmp_path, closed) -> None:
    for words in (
        "$generate --output-audio a.wav --json a.json",
        "$trace --output a.safetensors",
        "$voicechat convert $model converted",
        "$voicechat inspect -m $model",
        "$voicechat verify -m $model --seconds 0.5",
    ):
        done = shell(f"{words} {closed}")
        assert (done.returncode, done.stderr) == (0, b""), words
    check_answer(tmp_path)
    assert load((tmp_path / "a.safetensors").read_bytes())["tts.codes"].shape[1] == 31
    assert (tmp_path / "converted" / "SHA256SUMS").is_file()


def test_a_refusal_to_a_closed_stream_is_an_exit_code_only(shell) -> None:
    done = shell("$voicechat generate 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"")


def test_closed_streams_are_closed_again_for_the_caller(monkeypatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert main(["generate"]) == 2
    assert (sys.stdout, sys.stderr) == (None, None)


def test_no_library_writes_its_messages_into_an_output(shell, tmp_path) -> None:
    code = "import os; from voicechat_mlx.cli.common import guarded; from voicechat_mlx.files import replacing\n"
    code += "def work():\n with replacing('a.txt') as place, place.open('w') as file:\n"
    code += "  os.write(2, b'noise'); file.write('kept')\n return 0\n"
    code += "raise SystemExit(guarded(work, debug=False))"
    assert shell(f'{sys.executable} -c "{code}" 2>&-').returncode == 0
    assert (tmp_path / "a.txt").read_text() == "kept"


# Pipes in the place of files


def test_every_output_may_be_a_pipe(shell, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    done = shell(
        "$generate --output-audio >(cat > a.wav) --json >(cat > a.json) --plot >(cat > a.png) && "
        "$trace --output >(cat > a.safetensors) && $generate --output-audio b.wav --json b.json; code=$?; "
        "sleep 0.5; exit $code"
    )
    assert (done.returncode, done.stderr) == (0, b"")
    check_answer(tmp_path)
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.format == "PNG"
    assert (
        load((tmp_path / "a.safetensors").read_bytes())["codec.audio"].size == soundfile.info(tmp_path / "a.wav").frames
    )


def test_the_sound_may_go_to_standard_output_before_the_texts(shell, tmp_path) -> None:
    done = shell("$generate --output-audio /dev/stdout --json a.json | cat; exit ${PIPESTATUS[0]}")
    assert (done.returncode, done.stderr) == (0, b"")
    sound, found, _ = done.stdout.partition(b"[user] ")
    assert found
    frames = json.loads((tmp_path / "a.json").read_text())["frames"]
    assert soundfile.info(io.BytesIO(sound)).frames == frames * 1764


@pytest.mark.parametrize("taker", ["| cat", "> out.txt; cat out.txt", ">> out.txt; cat out.txt"])
def test_the_json_may_go_to_standard_output_before_the_texts(shell, taker) -> None:
    done = shell(f"$generate --output-audio a.wav --json /dev/stdout {taker}")
    values, _, texts = done.stdout.decode().partition("\n}\n")
    assert json.loads(values + "}")["sample_rate"] == 22050
    assert texts.startswith("[user] ")


def test_a_pipe_whose_reader_left_is_a_file_that_was_not_written(shell) -> None:
    done = shell("$generate --output-audio a.wav --json >(true)")
    assert done.returncode == 1
    assert done.stderr.endswith(b" was not written: Broken pipe\n") and done.stderr.count(b"\n") == 1


def test_two_outputs_to_one_pipe_are_refused(shell) -> None:
    done = shell("$generate --output-audio /dev/stdout --json /dev/fd/1 | cat; exit ${PIPESTATUS[0]}")
    assert done.returncode == 2 and b"--json and --output-audio both name /dev/fd/1" in done.stderr


# Interruption


@pytest.mark.parametrize("module", ["voicechat_mlx.cli.verify", "voicechat_mlx.conventions", "argparse"])
def test_an_interruption_while_the_commands_are_imported_is_one_line(module) -> None:
    code = f"""
import runpy, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt

import voicechat_mlx
for name in ("argparse", "voicechat_mlx.conventions"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Interrupting())
runpy.run_module("voicechat_mlx.cli", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (1, "voicechat: interrupted\n")
