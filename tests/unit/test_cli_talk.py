"""`voicechat talk`: from file to file, with devices (pretended ones), and with a server."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile

import voicechat_mlx
from tests import models
from tests.server.conftest import service
from tests.unit.cli_helpers import QUESTION, check_refused, place
from voicechat_mlx.cli.__main__ import main
from voicechat_mlx.cli.talk_display import Screen, Script
from voicechat_mlx.cli.talk_files import Answer, say_file
from voicechat_mlx.cli.talk_partners import Local
from voicechat_mlx.events import FrameTiming, FunctionDelta, TextDelta, TranscriptDelta
from voicechat_mlx.offline import generate
from voicechat_mlx.server.access import Access
from voicechat_mlx.server.limits import Limits
from voicechat_mlx.server.running import running
from voicechat_mlx.server.service import Service

__all__ = ["place"]  # a fixture


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands load the quick model."""
    monkeypatch.setattr(voicechat_mlx, "load", lambda *_, **__: models.hasty())


def spoken(lines: str, side: str) -> str:
    """All phrases of one side, without spaces and as they are printed."""
    phrases = [line.removeprefix(f"[{side}] ") for line in lines.splitlines() if line.startswith(f"[{side}] ")]
    return "".join("".join(phrases).split())


def printed(text: str) -> str:
    """Without spaces, which phrases change; control characters as a terminal may see them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in "".join(text.split()))


def test_a_file_is_answered_to_the_byte_as_generate_answers_it(tmp_path, capsys) -> None:
    options = ["-p", "Be concise.", "--seed", "3", "--extra-decoding-seconds", "0.5"]
    assert main(["generate", "--audio", QUESTION, "--output-audio", f"{tmp_path}/g.wav", *options]) == 0
    capsys.readouterr()
    assert main(["talk", "--input-file", QUESTION, "--output-file", f"{tmp_path}/t.wav", *options]) == 0
    assert (tmp_path / "t.wav").read_bytes() == (tmp_path / "g.wav").read_bytes()
    said = capsys.readouterr()
    expected = generate(voicechat_mlx.load(), QUESTION, system_prompt="Be concise.", seed=3, extra_decoding_seconds=0.5)
    assert spoken(said.out, "user") == printed(expected.user_transcript)
    assert spoken(said.out, "assistant") == printed(expected.text)
    assert spoken(said.out, "function") == printed(expected.function_text)
    assert f"{expected.frames} frames of 80 ms, computed in " in said.err


def test_a_server_answers_a_file_as_the_library_does(tmp_path, capsys) -> None:
    question = models.speech(24.0, seed=1)  # longer than what may be ahead of the answer
    soundfile.write(tmp_path / "q.wav", question, 16000, subtype="PCM_16")
    steps, _ = soundfile.read(tmp_path / "q.wav", dtype="float32")
    with running(service()) as url:
        words = ["--input-file", f"{tmp_path}/q.wav", "--output-file", f"{tmp_path}/a.wav", "-p", "Hello."]
        assert main(["talk", "--url", f"{url}/", *words, "--extra-decoding-seconds", "1"]) == 0
    expected = generate(models.hasty(), steps, system_prompt="Hello.", extra_decoding_seconds=1.0)
    out = capsys.readouterr().out
    assert spoken(out, "user") == printed(expected.user_transcript)
    assert spoken(out, "assistant") == printed(expected.text)
    answer, rate = soundfile.read(tmp_path / "a.wav", dtype="float32")
    assert rate == 22050 and answer.shape == expected.audio.shape
    assert np.abs(answer - np.clip(expected.audio, -1, 1)).max() <= 1 / 32768  # rounded once, on the way


def test_a_system_prompt_that_the_server_does_not_take_is_the_users_mistake(place, capsys) -> None:
    with running(service(instructions_chars=5)) as url:
        words = ["talk", "--url", url, "--input-file", QUESTION, "--output-file", "a.wav", "-p", "Be brief."]
        check_refused(capsys, words, "instructions have 9 characters; 5 are allowed")


def test_a_talk_that_is_stopped_keeps_what_was_answered(hasty) -> None:
    partner, stopping = Local(models.hasty(), prompt=None, seed=0), threading.Event()
    question = models.speech(8.0)
    answer = Answer(Script())
    push = partner.push

    def push_once(samples: Any) -> Any:
        stopping.set()
        return push(samples)

    partner.push = push_once  # type: ignore[method-assign]
    say_file(partner, question, 3.0, answer, stopping)
    expected = generate(models.hasty(), question[: partner.block], extra_decoding_seconds=0.0)
    assert np.array_equal(answer.samples, expected.audio)


class Devices(SimpleNamespace):
    """In the place of the module `sounddevice`: a microphone that speaks, a loudspeaker that remembers."""

    class PortAudioError(Exception):
        pass

    def __init__(self, question: np.ndarray, *, rates: tuple[int, ...] = (16000, 22050)) -> None:
        super().__init__(question=question, rates=rates, played=[], opened=[])

    def check_input_settings(self, *, samplerate: int, **_: object) -> None:
        if samplerate not in self.rates:
            raise self.PortAudioError("Invalid sample rate")

    check_output_settings = check_input_settings

    def query_devices(self, device: object, way: str) -> dict[str, float]:
        return {"default_samplerate": float(self.rates[0])}

    def InputStream(self, *, callback: Any, **options: Any) -> Any:  # noqa: N802
        self.opened.append(("microphone", options["device"], options["samplerate"]))

        def speak() -> None:
            for begin in range(0, len(self.question), 320):
                callback(self.question[begin : begin + 320, None], 320, None, None)
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)

        return _Stream(speak)

    def OutputStream(self, *, callback: Any, **options: Any) -> Any:  # noqa: N802
        self.opened.append(("speaker", options["device"], options["samplerate"]))
        playing = threading.Event()

        def listen() -> None:
            while not playing.is_set():
                block = np.empty((441, 1), np.float32)
                callback(block, 441, None, None)
                self.played.append(block[:, 0])
                time.sleep(0.002)

        return _Stream(listen, playing)


class _Stream:
    def __init__(self, work: Any, ended: threading.Event | None = None) -> None:
        self._thread, self._ended = threading.Thread(target=work), ended

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        if self._ended:
            self._ended.set()
        self._thread.join()


def test_with_devices_a_talk_is_heard_answered_played_and_ended_by_ctrl_c(hasty, monkeypatch, tmp_path, capsys) -> None:
    question = models.speech(2.0, seed=4)
    devices = Devices(question)
    monkeypatch.setitem(sys.modules, "sounddevice", devices)
    words = ["--output-file", f"{tmp_path}/a.wav", "--microphone", "2", "--speaker", "Head"]
    assert main(["talk", *words]) == 0
    assert devices.opened == [("speaker", "Head", 22050), ("microphone", 2, 16000)]

    said = capsys.readouterr()
    expected = generate(models.hasty(), question, extra_decoding_seconds=0.0)
    answer, _ = soundfile.read(tmp_path / "a.wav", dtype="float32")
    np.testing.assert_allclose(answer, np.clip(expected.audio, -1, 1), atol=0.5 / 32768 + 1e-5)
    assert spoken(said.out, "assistant") == printed(expected.text)
    assert "delay" in said.err and "backlog" in said.err and "gaps" in said.err

    played = np.concatenate(devices.played)
    heard = played[np.flatnonzero(played)]
    whole = expected.audio[np.flatnonzero(expected.audio)]
    np.testing.assert_allclose(heard, whole, atol=1e-5)  # all of it, in order, whatever gaps there were


def test_devices_with_rates_of_their_own_are_resampled(hasty, monkeypatch, tmp_path, capsys) -> None:
    question = models.speech(1.5, seed=5, sample_rate=48000)
    devices = Devices(question, rates=(48000,))
    monkeypatch.setitem(sys.modules, "sounddevice", devices)
    assert main(["talk", "--output-file", f"{tmp_path}/a.wav"]) == 0
    assert devices.opened == [("speaker", None, 48000), ("microphone", None, 48000)]
    seconds = soundfile.info(tmp_path / "a.wav").duration
    assert 1.3 < seconds < 1.7
    assert np.abs(np.concatenate(devices.played)).max() > 0.01


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--url", "http://127.0.0.1:1", "-m", "x"], "-m and --url"),
        (["--url", "http://127.0.0.1:1", "--dtype", "float32"], "--dtype and --url"),
        (["--token", "t"], "--token is for a server"),
        (["--input-file", QUESTION, "--speaker", "1"], "--speaker and --input-file"),
        (["--input-file", "no.wav"], "no.wav does not exist"),
        (["--input-file", QUESTION, "--output-file", "a.mp3"], "end its name in .wav"),
        (["--input-file", "old.wav", "--output-file", "old.wav"], "--output-file and --input-file both name old.wav"),
        (["--input-file", QUESTION, "--url", "http://127.0.0.1:1"], "start one with: voicechat serve"),
        (["--input-file", QUESTION, "--url", "nonsense"], "start one with: voicechat serve"),
        (["--extra-decoding-seconds", "-1"], "--extra-decoding-seconds"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(place, capsys, words: list[str], named: str) -> None:
    check_refused(capsys, ["talk", *words], named)


def test_what_is_missing_for_devices_is_named_with_what_installs_it(place, capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    check_refused(capsys, ["talk"], r"pip install sounddevice, or use --input-file")

    def without_portaudio(name: str) -> None:
        raise OSError("PortAudio library not found")

    monkeypatch.setattr("voicechat_mlx.cli.talk_sound.importlib.import_module", without_portaudio)
    check_refused(capsys, ["talk"], "apt install libportaudio2")


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (Devices.PortAudioError("Error querying device -1"), "the speaker cannot be used .*--input-file"),
        (ValueError("No output device matching 'Foo'"), "--speaker Foo: .*python -m sounddevice"),
    ],
)
def test_a_device_that_is_not_there_is_named(hasty, monkeypatch, tmp_path, capsys, fault, named: str) -> None:
    devices = Devices(np.zeros(320, np.float32))

    def refuse(**_: object) -> None:
        raise fault

    monkeypatch.setattr(devices, "OutputStream", refuse, raising=False)
    monkeypatch.setitem(sys.modules, "sounddevice", devices)
    assert main(["talk", "--speaker", "Foo"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.search(named, last), last


def test_a_server_that_wants_a_token_or_is_busy_says_so(tmp_path, capsys) -> None:
    guarded = Service(
        load=models.hasty, model_name="hasty", limits=Limits(max_sessions=1), access=Access(token="secret")
    )
    words = ["talk", "--input-file", QUESTION]
    with running(guarded) as url:
        assert main([*words, "--url", url]) == 2
        assert "--token" in capsys.readouterr().err
        from voicechat_mlx.cli.talk_remote import remote

        with remote(url, token="secret", prompt=None, seed=0):
            assert main([*words, "--url", url, "--token", "secret"]) == 1
        assert "server_busy" in capsys.readouterr().err
        time.sleep(0.3)  # until the place is free again
        assert main([*words, "--url", url, "--token", "secret"]) == 0


def test_a_server_that_stops_ends_the_talk_and_what_was_answered_is_kept(tmp_path, capsys, monkeypatch) -> None:
    soundfile.write(tmp_path / "long.wav", models.speech(60.0), 16000, subtype="PCM_16")
    started = service()
    with running(started) as url:
        from voicechat_mlx.cli.talk_remote import Remote

        push = Remote.push

        def push_and_stop(self: Remote, samples: Any) -> Any:
            events = push(self, samples)
            if self._answered > 20 and not started.is_stopping:
                stop()
            return events

        def stop() -> None:
            for connection in list(started.connections):
                loop = connection._loop
                loop.call_soon_threadsafe(connection.hang_up, "server_shutting_down", "the server stops")
            started.is_stopping = True

        monkeypatch.setattr(Remote, "push", push_and_stop)
        kept = tmp_path / "a.wav"
        assert main(["talk", "--url", url, "--input-file", f"{tmp_path}/long.wav", "--output-file", str(kept)]) == 1
    assert "server_shutting_down" in capsys.readouterr().err
    assert soundfile.info(kept).frames >= 15 * 1764


def test_elsewhere_than_on_a_terminal_a_phrase_is_a_line(capsys) -> None:
    with Script() as display:
        display.show([TranscriptDelta(frame=0, text="what"), TranscriptDelta(frame=3, text=" time is it")])
        display.show([TextDelta(frame=14, text=" It"), FrameTiming(frame=15, seconds={"all": 0.004})])
        assert capsys.readouterr().out == ""
        display.show([FrameTiming(frame=16, seconds={"all": 0.006})])  # a second after the user's last piece
        assert capsys.readouterr().out == "[user] what time is it\n"
        display.show([TextDelta(frame=17, text=" is\nnoon."), FunctionDelta(frame=17, text=" ")])
        display.show([TextDelta(frame=40, text="Yes.")])
    assert capsys.readouterr().out == "[assistant] It is noon.\n[assistant] Yes.\n"
    assert display.summary == "2 frames of 80 ms, computed in 5.0 ms each (19 of 20 within 5.9 ms)"


def test_on_a_terminal_both_sides_are_rewritten_in_place(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "21")
    with Screen() as display:
        display.show([TranscriptDelta(frame=0, text="what time is it"), FrameTiming(frame=0, seconds={"all": 0.004})])
        first = capsys.readouterr().out
        assert first.startswith("\x1b[J[user] …t time is it\n[assistant] \n0:00  1 frames")
        assert all(len(line) <= 20 for line in first.replace("\x1b[J", "").splitlines()[:2])
        display.show([TextDelta(frame=1, text="It \x1b[2J is"), FunctionDelta(frame=1, text="漢字漢字漢字")])
        second = capsys.readouterr().out
        assert second.startswith("\x1b[3F\x1b[J[user] …t time is it\n")  # three lines up, and away with them
        assert "[function] …字漢字\n" in second  # two columns each
        assert second.count("\x1b") == 2  # the model's own is spelt out
    assert capsys.readouterr().out == ("\x1b[4F\x1b[J[user] what time is it\nIt \\x1b[2J is\n[function] 漢字漢字漢字\n")
