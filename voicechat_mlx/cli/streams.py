"""Standard input, output and error as the caller left them: open, closed, full, or a pipe that nobody reads.

Python itself writes what is held back only while it leaves, where a failure costs two lines and the exit code 120. So
everything is written before that, and what cannot be written is thrown away.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TextIO

from voicechat_mlx.errors import VoiceChatError

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""What could steer a terminal or turn a line round: control characters but newline, line separators, bidi marks."""


def printable(text: str) -> str:
    """The text with control characters spelled out in hexadecimal, as in a Python string; newlines stay."""
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def say(text: str) -> None:
    """Print what may hold a model's or a file's words. Raises BrokenPipeError or VoiceChatError, as `flush` does."""
    with _output_named():
        print(printable(text))


def flush() -> None:
    """Write what was said. Raises BrokenPipeError when the reader left, VoiceChatError for any other failure."""
    with _output_named():
        sys.stdout.flush()


def complain(text: str) -> None:
    """A line on stderr; where that cannot be written there is nobody to tell."""
    with suppress(OSError):
        print(text, file=sys.stderr)


@contextmanager
def standard_streams() -> Iterator[None]:
    """All three are there, can show any letter, and hold nothing back when the block has ended.

    A closed one leads nowhere for the while: otherwise the next file to be opened would get its number, and with it
    whatever libraries write there.
    """
    with ExitStack() as stack:
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # each open takes the lowest free number
            if getattr(sys, name) is None:
                setattr(sys, name, stack.enter_context(open(os.devnull, mode, encoding="utf-8")))
                stack.callback(setattr, sys, name, None)
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")  # a terminal that cannot show a letter gets a question mark
            stack.callback(_empty, stream)
        yield


def _empty(stream: TextIO) -> None:
    """Write what is held back, or lead the stream nowhere so that leaving does not fail on it."""
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        with suppress(OSError):  # a stream without a number
            os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


@contextmanager
def _output_named() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise VoiceChatError(f"standard output was not written: {error.strerror or error}") from error
