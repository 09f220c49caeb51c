"""`voicechat talk`: talk to a model in the terminal, with microphone and loudspeaker or from file to file.

With --url the model is that of a running `voicechat serve`, else it runs here. Ctrl-C ends the talk; what was answered
is then written. Wear headphones: a terminal has no echo cancellation, and the model would hear itself.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from voicechat_mlx.cli import options
from voicechat_mlx.cli.common import UsageError
from voicechat_mlx.cli.outputs import check_model_is_kept, check_outputs
from voicechat_mlx.cli.serve import TOKEN_VARIABLE
from voicechat_mlx.cli.streams import complain
from voicechat_mlx.errors import InputError, VoiceChatError

if TYPE_CHECKING:
    from voicechat_mlx.audio.wav import Samples
    from voicechat_mlx.cli.talk_files import Answer
    from voicechat_mlx.cli.talk_partners import Partner

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def add_command(commands: Any) -> None:
    """Register the command with argparse's sub-parsers."""
    parser = commands.add_parser("talk", help="talk to it in the terminal", description=__doc__)
    options.add_model_options(parser)
    parser.add_argument(
        "--url",
        type=options.path,
        metavar="URL",
        help="talk to this server instead, for instance http://127.0.0.1:8765",
    )
    parser.add_argument("--token", metavar="T", help=f"what that server wants to know (or {TOKEN_VARIABLE})")
    parser.add_argument(
        "--input-file",
        type=options.path,
        metavar="IN",
        help="say this instead of listening to a microphone, and play nothing: WAV, FLAC, OGG or MP3, any rate",
    )
    parser.add_argument(
        "--output-file", type=options.path, metavar="OUT.wav", help="also write the answer: mono 16-bit WAV"
    )
    parser.add_argument(
        "--extra-decoding-seconds",
        type=options.silence,
        default=3.0,
        metavar="S",
        help="silence after --input-file so that the answer can end (default: 3)",
    )
    for name in ("microphone", "speaker"):
        parser.add_argument(
            f"--{name}",
            type=options.path,
            metavar="DEVICE",
            help=f"name or number of the {name}; `python -m sounddevice` lists them (default: the system's)",
        )
    options.add_session_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Everything that can be refused is refused before a model is loaded or a server is asked."""
    _check_options(arguments)
    outputs = {"--output-file": arguments.output_file}
    check_outputs(outputs, arguments.input_file, "--input-file")
    question = _question(arguments)
    if not arguments.url:
        check_model_is_kept(outputs, arguments.model)

    from voicechat_mlx.cli.talk_display import Display, Screen, Script
    from voicechat_mlx.cli.talk_files import Answer

    display: Display = Screen() if sys.stdout.isatty() else Script()
    answer = Answer(display)
    with _partner(arguments) as partner:
        try:
            with _stopping() as stopping, display:
                _talk(arguments, partner, question, answer, stopping)
        except BaseException:  # what was answered until then is kept; what went wrong first is what is told
            with suppress(OSError, VoiceChatError):
                _save(arguments.output_file, answer, partner.output_rate)
            raise
        _save(arguments.output_file, answer, partner.output_rate)
    if display.summary:
        complain(f"voicechat: {display.summary}")


def _question(arguments: argparse.Namespace) -> Samples | None:
    """The file's samples; None when a microphone is to be used, and can be."""
    if arguments.input_file:
        from voicechat_mlx.audio.wav import read_audio

        return read_audio(arguments.input_file)
    from voicechat_mlx.cli.talk_sound import require_sounddevice

    require_sounddevice()
    return None


def _talk(
    arguments: argparse.Namespace, partner: Partner, question: Samples | None, answer: Answer, stopping: threading.Event
) -> None:
    if question is not None:
        from voicechat_mlx.cli.talk_files import say_file

        say_file(partner, question, arguments.extra_decoding_seconds, answer, stopping)
    else:
        from voicechat_mlx.cli.talk_sound import converse

        complain("voicechat: speak; Ctrl-C ends the talk (wear headphones, or the model hears itself)")
        converse(partner, arguments.microphone, arguments.speaker, answer, stopping)


def _save(place: str | None, answer: Answer, rate: int) -> None:
    from voicechat_mlx.audio.wav import write_wav

    if place:
        write_wav(place, answer.samples, rate)


def _check_options(arguments: argparse.Namespace) -> None:
    if arguments.url:
        for option, given in (
            ("-m", arguments.model),
            ("--dtype", arguments.dtype != "auto"),
            ("--force", arguments.force),
        ):
            if given:
                raise UsageError(
                    f"{option} and --url exclude each other: the server has loaded its model; leave one out"
                )
    elif arguments.token is not None:
        raise UsageError("--token is for a server; add --url, or leave it out")
    if arguments.input_file:
        for option in ("microphone", "speaker"):
            if getattr(arguments, option):
                raise UsageError(
                    f"--{option} and --input-file exclude each other: a file needs no device; leave one out"
                )


@contextmanager
def _partner(arguments: argparse.Namespace) -> Iterator[Partner]:
    """Whom to talk to: a session here, or a server."""
    if arguments.url:
        if importlib.util.find_spec("websockets") is None:
            raise InputError("talk --url needs websockets; install it with: pip install websockets")
        from voicechat_mlx.cli.talk_remote import remote

        token = arguments.token if arguments.token is not None else os.environ.get(TOKEN_VARIABLE) or None
        with remote(arguments.url, token=token, prompt=arguments.prompt, seed=arguments.seed) as partner:
            yield partner
    else:
        from voicechat_mlx.cli.talk_partners import Local

        yield Local(options.load_model(arguments), prompt=arguments.prompt, seed=arguments.seed)


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM sets, so that no frame is broken off; the second interrupts at once."""
    event = threading.Event()

    def stop(number: int, frame: Any) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield event
        return
    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
