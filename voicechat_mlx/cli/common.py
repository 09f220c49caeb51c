"""What every command shares: one-line errors, exit codes, the log, the progress bar."""

from __future__ import annotations

import argparse
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from voicechat_mlx.cli.streams import complain, flush, printable, standard_streams
from voicechat_mlx.errors import InputError, VoiceChatError

DONE, FAILED, WRONG_INPUT = 0, 1, 2
"""Exit codes: finished, failed while running, the caller's input is wrong."""
BUNDLED_QUESTION = Path(__file__).parent.parent / "bundled" / "question.wav"
"""A spoken question that comes with the package."""
LONG_WORD = re.compile(r"'([^'\s]{40})[^'\s]{20,}'")
"""In argparse's messages: a value that would fill the screen."""


class UsageError(InputError):
    """A command line that makes no sense."""


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors and without guessing at shortened options."""

    def __init__(self, **options: object) -> None:
        super().__init__(**{"allow_abbrev": False, **options})  # type: ignore[arg-type]  # argparse's own keywords

    def error(self, message: str) -> NoReturn:
        """Instead of printing the usage and leaving."""
        message = LONG_WORD.sub(r"'\1…'", message)
        question = f" (to try it out: --audio {BUNDLED_QUESTION})" if "required: --audio" in message else ""
        raise UsageError(f"{message}{question}; `{self.prog} --help` lists what there is")


def guarded(work: Callable[[], int], *, debug: bool) -> int:
    """The exit code of `work`; an exception becomes one line on stderr, behind its traceback with `debug`."""
    with standard_streams():
        try:
            return _with_all_said(work)
        except BrokenPipeError:  # the reader left, which is no fault
            return FAILED
        except KeyboardInterrupt:
            line, code = "interrupted", FAILED
        except VoiceChatError as error:
            line, code = str(error), WRONG_INPUT if isinstance(error, InputError) else FAILED
            _show_traceback(debug)
        except MemoryError as error:
            line, code = f"out of memory ({error}); use shorter audio or a smaller model", FAILED
            _show_traceback(debug)
        except Exception as error:
            advice = _library_advice(error) if isinstance(error, ImportError) else None
            line, code = f"{type(error).__name__}: {error}; {advice or '--debug shows where'}", FAILED
            _show_traceback(debug)
        complain(f"voicechat: {printable(' '.join(line.split()))}")
        return code


def _with_all_said(work: Callable[[], int]) -> int:
    """The exit code of `work` once all that it said is written; `--help` says things, too, and ends in SystemExit."""
    try:
        code = work()
    except SystemExit:
        flush()
        raise
    flush()
    return code


class _PrintableLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


@contextmanager
def log_on_stderr(*, debug: bool) -> Iterator[None]:
    """The library's warnings, or with `debug` all it has to say, as lines on stderr."""
    logger, handler = logging.getLogger("voicechat_mlx"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(_PrintableLines("voicechat: %(message)s"))
    previous = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if debug else logging.WARNING)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(previous)


@contextmanager
def progress_bar(unit: str = "frame", *, unit_scale: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """A function (units done, units in all) that moves a bar; None when stderr is not a terminal.

    `unit_scale` shows large numbers as k, M and G.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    with tqdm(unit=unit, unit_scale=unit_scale, leave=False) as bar:

        def move(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield move


def _library_advice(error: ImportError) -> str | None:
    """What to do when a module lacks a shared library, as MLX does without its back end or NVIDIA's driver."""
    library = re.search(r"lib[\w+-]+\.(so|dylib)\b", str(error))
    if not library:
        return None
    if library[0] == "libcuda.so":
        return (
            "MLX's CUDA back end needs NVIDIA's driver: install the driver, or to compute on the CPU run "
            "`pip uninstall -y mlx-cuda-12 mlx-cuda-13 mlx-cpu` and then `pip install 'mlx[cpu]'`"
        )
    return "if MLX needs it, run `pip install --force-reinstall 'mlx[cpu]'` (on an NVIDIA GPU 'mlx[cuda13]')"


def _show_traceback(debug: bool) -> None:
    if debug:
        complain(traceback.format_exc().rstrip())
