"""The commands from end to end, on a tiny checkpoint with random weights: what they print, write and return."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import wave
from pathlib import Path

import numpy as np
import pytest
import soundfile
from safetensors.numpy import load_file

import voicechat_mlx
from fixtures.make_tiny import make
from tests.unit.cli_helpers import result
from voicechat_mlx.cli.__main__ import main
from voicechat_mlx.cli.common import BUNDLED_QUESTION

JSON_KEYS = [
    "text", "function_text", "user_transcript", "text_tokens", "function_tokens", "audio_codes",
    "frames", "sample_rate", "seconds", "real_time_factor",
]  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return make(tmp_path_factory.mktemp("checkpoint"), "fp32")


def frames_of(samples: int) -> int:
    """T = 1 + n // 160 mel rows give (T - 2) // 8 + 2 frames, for T ≥ 2; a lone row gives one."""
    rows = 1 + samples // 160
    return (rows - 2) // 8 + 2


def without_controls(text: str) -> str:
    """Control characters as a backslash, x and two digits, but tab and return as Python writes them; newlines stay."""
    names = {"\t": r"\t", "\r": r"\r", "\n": "\n"}
    return "".join(names.get(c, f"\\x{ord(c):02x}") if ord(c) < 32 or 127 <= ord(c) < 160 else c for c in text)


def generate(checkpoint: Path, folder: Path, *options: str, audio: Path = BUNDLED_QUESTION, name: str = "out") -> dict:
    """Run `generate` here; its JSON with the WAV's 16-bit samples added."""
    words = ["-m", str(checkpoint), "--audio", str(audio), "--output-audio", f"{folder}/{name}.wav"]
    assert main(["generate", *words, "--json", f"{folder}/{name}.json", *options]) == 0
    values = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    with wave.open(f"{folder}/{name}.wav") as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (22050, 1, 2)
        values["pcm"] = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    return values


def test_a_question_is_answered_in_text_and_sound(checkpoint, tmp_path) -> None:
    command = [sys.executable, "-m", "voicechat_mlx.cli", "generate", "-m", str(checkpoint), "-n", "0"]
    command += ["--audio", str(BUNDLED_QUESTION), "-p", "Be concise.", "--extra-decoding-seconds", "0.5"]
    command += ["--output-audio", f"{tmp_path}/a.wav", "--json", f"{tmp_path}/a.json"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    values = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    function = f"[function] {values['function_text']}\n" if values["function_text"] else ""
    assert done.stdout == without_controls(f"[user] {values['user_transcript']}\n{values['text']}\n{function}")
    frames = frames_of(soundfile.info(BUNDLED_QUESTION).frames + 8000)
    assert soundfile.info(tmp_path / "a.wav").frames == frames * 1764
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.wav"]


def test_the_json_holds_what_it_promises(checkpoint, tmp_path) -> None:
    values = generate(checkpoint, tmp_path, "--extra-decoding-seconds", "0.5")
    frames = frames_of(soundfile.info(BUNDLED_QUESTION).frames + 8000)
    assert [key for key in values if key != "pcm"] == JSON_KEYS
    assert values["frames"] == len(values["text_tokens"]) == len(values["function_tokens"]) == frames
    assert np.shape(values["audio_codes"]) == (frames, 31)
    assert values["sample_rate"] == 22050
    assert values["real_time_factor"] > 0
    assert values["seconds"] and all(seconds >= 0 for seconds in values["seconds"].values())


def test_the_bundled_model_answers_when_no_model_is_named(tmp_path, capsys) -> None:
    words = ["--audio", str(BUNDLED_QUESTION), "--output-audio", f"{tmp_path}/a.wav"]
    assert main(["generate", *words]) == 0
    captured = capsys.readouterr()
    assert captured.out == "[user] what is the capital of france\nThe capital of France is Paris.\n"
    assert captured.err == ""


def test_the_user_line_is_printed_even_when_nothing_was_heard(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(voicechat_mlx, "load", lambda *_, **__: None)
    monkeypatch.setattr(voicechat_mlx, "generate", lambda *_, **__: result())
    assert main(["generate", "--audio", str(BUNDLED_QUESTION), "--output-audio", f"{tmp_path}/a.wav"]) == 0
    assert capsys.readouterr().out == "[user] \nHello\n"
    monkeypatch.setattr(voicechat_mlx, "generate", lambda *_, **__: result(function_text="f()", user_transcript="hi"))
    assert main(["generate", "--audio", str(BUNDLED_QUESTION), "--output-audio", f"{tmp_path}/a.wav"]) == 0
    assert capsys.readouterr().out == "[user] hi\nHello\n[function] f()\n"


def test_what_steers_a_terminal_is_printed_as_text_and_stays_exact_in_the_json(tmp_path, capsys, monkeypatch) -> None:
    texts = {
        "user_transcript": "\x1b]0;title\x07 hi",
        "text": "a\x1b[2Jb\r\tc\nd\x7f\x9b31m \u202egpj é 🙂",
        "function_text": "f\x00()\u2028",
    }
    monkeypatch.setattr(voicechat_mlx, "load", lambda *_, **__: None)
    monkeypatch.setattr(voicechat_mlx, "generate", lambda *_, **__: result(**texts))
    words = ["--audio", str(BUNDLED_QUESTION), "--output-audio", f"{tmp_path}/a.wav", "--json", f"{tmp_path}/a.json"]
    assert main(["generate", *words]) == 0
    assert capsys.readouterr().out.split("\n") == [
        r"[user] \x1b]0;title\x07 hi",
        r"a\x1b[2Jb\r\tc",
        r"d\x7f\x9b31m \u202egpj é 🙂",
        r"[function] f\x00()\u2028",
        "",
    ]
    values = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert {key: values[key] for key in texts} == texts


def test_the_version_is_that_of_the_package(capsys) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"voicechat {project['version']}\n"


def test_the_same_seed_gives_the_same_bytes_whatever_ran_in_between(checkpoint, tmp_path) -> None:
    short = ["--extra-decoding-seconds", "0"]
    first = generate(checkpoint, tmp_path, *short, "--seed", "0", name="first")
    other = generate(checkpoint, tmp_path, *short, "--seed", "1", name="other")
    again = generate(checkpoint, tmp_path, *short, "-n", "7", name="again")  # seed 0 is the default, -n is ignored
    assert (tmp_path / "first.wav").read_bytes() == (tmp_path / "again.wav").read_bytes()
    for key in ("text_tokens", "function_tokens", "audio_codes", "text", "user_transcript"):
        assert first[key] == again[key]
    assert first["audio_codes"] != other["audio_codes"]


def test_trace_writes_the_same_sound_that_generate_writes(checkpoint, tmp_path, capsys) -> None:
    values = generate(checkpoint, tmp_path)
    words = ["-m", str(checkpoint), "--audio", str(BUNDLED_QUESTION)]
    capsys.readouterr()
    for name in ("a", "b"):
        assert main(["trace", *words, "--output", f"{tmp_path}/{name}.safetensors"]) == 0
    assert "28 activations" in capsys.readouterr().out
    arrays = load_file(tmp_path / "a.safetensors")
    steps = np.clip(np.rint(arrays["codec.audio"].astype(np.float64) * 32768), -32768, 32767)
    np.testing.assert_array_equal(steps, values["pcm"])
    np.testing.assert_array_equal(arrays["text.ids"], values["text_tokens"])
    np.testing.assert_array_equal(arrays["tts.codes"], values["audio_codes"])
    assert {str(array.dtype) for array in arrays.values()} == {"float32", "int32"}
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


@pytest.mark.parametrize(
    "option", [["--conventions", "nemo"], ["--dtype", "bfloat16"], ["--dtype", "float32"], ["-p", ""]]
)
def test_every_choice_answers(checkpoint, tmp_path, option) -> None:
    values = generate(checkpoint, tmp_path, "--extra-decoding-seconds", "0", *option)
    assert len(values["pcm"]) == 1764 * values["frames"]


@pytest.mark.parametrize("seconds", ["0", "0.05", "0.24"])
def test_appended_seconds_are_rounded_not_cut(checkpoint, tmp_path, seconds) -> None:
    values = generate(checkpoint, tmp_path, "--extra-decoding-seconds", seconds)
    samples = soundfile.info(BUNDLED_QUESTION).frames + round(16000 * float(seconds))
    assert values["frames"] == frames_of(samples)


@pytest.mark.parametrize("count", [1, 159, 160, 256, 257, 399, 400])
def test_short_recordings_are_answered(checkpoint, tmp_path, count) -> None:
    soundfile.write(tmp_path / "in.wav", np.full(count, 0.1), 16000)
    values = generate(checkpoint, tmp_path, "--extra-decoding-seconds", "0", audio=tmp_path / "in.wav")
    assert values["frames"] == frames_of(count)
    assert len(values["pcm"]) == 1764 * values["frames"]


@pytest.mark.parametrize(
    "samples",
    [np.sign(np.sin(np.arange(4000) / 9)), np.full(4000, 0.5), np.zeros(4000), np.full(4000, -1.0)],
    ids=["clipped", "direct current", "silence", "lowest value"],
)
def test_extreme_but_valid_recordings_are_answered(checkpoint, tmp_path, samples) -> None:
    soundfile.write(tmp_path / "in.wav", samples, 16000)
    values = generate(checkpoint, tmp_path, "--extra-decoding-seconds", "0", audio=tmp_path / "in.wav")
    assert len(values["pcm"]) == 1764 * frames_of(4000)


def test_a_stereo_recording_at_48_khz_keeps_its_duration(checkpoint, tmp_path) -> None:
    tone = 0.3 * np.sin(2 * np.pi * 300 * np.arange(48000) / 48000)
    soundfile.write(tmp_path / "in.wav", np.stack([0 * tone, tone], axis=1), 48000)
    values = generate(checkpoint, tmp_path, "--extra-decoding-seconds", "0", audio=tmp_path / "in.wav")
    assert values["frames"] == frames_of(16000)


def test_text_that_a_terminal_cannot_show_is_no_failure(tmp_path) -> None:
    code = """
import sys, voicechat_mlx
from tests.unit.cli_helpers import result
from voicechat_mlx.cli.__main__ import main
voicechat_mlx.load = lambda *_, **__: None
voicechat_mlx.generate = lambda *_, **__: result(text="für 日本 🙂")
sys.exit(main(["generate", "--audio", sys.argv[1], "--output-audio", sys.argv[2]]))
"""
    command = [sys.executable, "-c", code, str(BUNDLED_QUESTION), f"{tmp_path}/a.wav"]
    environment = {"PYTHONIOENCODING": "ascii", "PYTHONPATH": ".", "PATH": ""}
    done = subprocess.run(command, capture_output=True, env=environment, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"[user] \nf?r ?? ?\n"


def test_progress_is_shown_on_a_terminal_only(checkpoint, tmp_path, capsys, monkeypatch) -> None:
    generate(checkpoint, tmp_path, "--extra-decoding-seconds", "0")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    generate(checkpoint, tmp_path, "--extra-decoding-seconds", "0")
    assert "frame" in capsys.readouterr().err


def test_a_conversion_counts_its_progress_in_bytes(checkpoint, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert main(["convert", str(checkpoint), f"{tmp_path}/converted", "--bits", "4"]) == 0
    assert "0.00B [00:00, ?B/s]" in capsys.readouterr().err
