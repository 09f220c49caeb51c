"""Options that several commands take, and what they mean in the library's words."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from voicechat_mlx.conventions import PROFILES
from voicechat_mlx.errors import InputError
from voicechat_mlx.names import DTYPES

if TYPE_CHECKING:
    from voicechat_mlx.audio.wav import Samples
    from voicechat_mlx.model import VoiceChat

WHOLE = re.compile(r"[+-]?[0-9]{1,999}")
"""Python itself gives up on numbers of more than a few thousand digits."""


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Options of every command."""
    parser.add_argument(
        "-m",
        "--model",
        type=path,
        metavar="MODEL",
        help="checkpoint folder or Hub id (default: the bundled model)",
    )
    parser.add_argument("--debug", action="store_true", help="tell more, and show where an error happened")


def add_loading_options(parser: argparse.ArgumentParser) -> None:
    """How a model is loaded; `load_model` reads them."""
    parser.add_argument(
        "--dtype", choices=DTYPES, default="auto", help="precision of the arithmetic (default: auto, by machine)"
    )
    parser.add_argument("--force", action="store_true", help="go on although the model may not fit into memory")


def add_question_options(parser: argparse.ArgumentParser) -> None:
    """Options of the commands that answer a recording."""
    parser.add_argument(
        "--audio", type=path, required=True, metavar="IN", help="the question: WAV, FLAC, OGG or MP3, any rate"
    )
    parser.add_argument(
        "-n", type=whole, metavar="N", help="accepted and ignored: the answer is as long as the recording"
    )
    parser.add_argument(
        "--extra-decoding-seconds",
        type=silence,
        default=3.0,
        metavar="S",
        help="silence appended to the question so that the answer can end (default: 3)",
    )
    add_session_options(parser)
    parser.add_argument(
        "--conventions",
        choices=sorted(PROFILES),
        default="mlx",
        help="edge behaviour of the MLX ports or of the publisher (default: mlx)",
    )


def add_session_options(parser: argparse.ArgumentParser) -> None:
    """Options of the commands that open a session."""
    parser.add_argument(
        "-p",
        "--prompt",
        type=_prompt,
        metavar="PROMPT",
        help="system prompt; '' for none (default: the checkpoint's own)",
    )
    parser.add_argument(
        "--seed", type=_seed, default=0, metavar="N", help="same seed, same answer, to the byte (default: 0)"
    )
    add_loading_options(parser)


def load_question(arguments: argparse.Namespace) -> Samples:
    """`--audio` → float32 [n] at 16 kHz."""
    from voicechat_mlx.audio.wav import read_audio

    return read_audio(arguments.audio)


def load_model(arguments: argparse.Namespace) -> VoiceChat:
    """`-m` and `--dtype` → the model."""
    import voicechat_mlx

    return voicechat_mlx.load(arguments.model, dtype=arguments.dtype, force=arguments.force)


def generation_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of `generate` and `trace`."""
    return {
        "system_prompt": arguments.prompt,
        "extra_decoding_seconds": arguments.extra_decoding_seconds,
        "seed": arguments.seed,
        "conventions": arguments.conventions,
    }


def path(text: str) -> str:
    """For argparse: the name of a file or folder, or a Hub id; never empty, as an unset variable of a script is."""
    if not text:
        raise argparse.ArgumentTypeError("the name given is empty")
    return text


def whole(text: str) -> int:
    """For argparse: a whole number in ASCII digits."""
    if not WHOLE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def number(text: str) -> float:
    """For argparse: a number of seconds in ASCII, without Python's underscores."""
    try:
        if not text.isascii() or "_" in text:
            raise ValueError
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None


def _prompt(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("the prompt is not valid UTF-8") from None
    return text


def silence(text: str) -> float:
    """For argparse: how much silence to append."""
    from voicechat_mlx.audio.wav import sample_count

    seconds = number(text)
    try:
        sample_count(seconds)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return seconds


def _seed(text: str) -> int:
    if not (WHOLE.fullmatch(text) and 0 <= int(text) < 2**64):
        raise argparse.ArgumentTypeError(f"the seed {text!r} is not a whole number from 0 to 2^64 - 1")
    return int(text)
