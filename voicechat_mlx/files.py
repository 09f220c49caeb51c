"""Output files: checked before any work, written beside their place, moved there when whole.

A failure at any moment leaves the old file or none. Folders are never made for the caller.
Devices and pipes (`/dev/null`, `>(command)`, `/dev/stdout`) cannot be replaced by a file: what is to go there is
written elsewhere and copied when whole, since writers of some formats go back and forth in their file.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from voicechat_mlx.errors import OutputError, VoiceChatError

DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/([0-9]+)")
STANDARD = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
"""Names of what this process has open, by number. Links that lead from there need not lead to a file."""


def check_output(path: str | os.PathLike[str]) -> Path:
    """A path to write → the same path with links followed. Raises OutputError when it cannot be written."""
    shown = os.fspath(path)
    if not shown:
        raise OutputError("the name of an output file is empty")
    number = _descriptor(shown)
    if number is not None:
        _require_writable(number, shown)
        return Path(f"/dev/fd/{number}")
    try:
        target = Path(path).resolve()
        mode = _mode(path)
        folder_exists = target.parent.is_dir()
    except (OSError, ValueError, RuntimeError) as error:  # too long a name, a zero byte, a loop of links
        raise OutputError(f"{shown!r} cannot be an output file ({error}); choose another name") from None
    if mode is not None and stat.S_ISDIR(mode):
        raise OutputError(f"{shown} is a folder; name a file in it")
    if mode is not None and stat.S_ISSOCK(mode):
        raise OutputError(f"{shown} is a socket; choose another name")
    if mode is None and not folder_exists:
        raise OutputError(f"the folder of {shown} does not exist; make it with: mkdir -p {target.parent}")
    if mode is not None and not os.access(path, os.W_OK):
        raise OutputError(f"{shown} is write-protected; choose another name or allow writing")
    if mode is not None and not stat.S_ISREG(mode):
        return target if target.exists() else Path(path).absolute()  # another process's pipe has no name of its own
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise OutputError(f"the folder {target.parent} is not writable; choose another place for {shown}")
    return target


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields the place to write; what lies there when the block ends takes the place of `path`.

    Raises OutputError when `path` cannot be written, VoiceChatError when writing fails midway.
    """
    target = check_output(path)
    streamed = not _is_replaceable(target)
    with _failures_named(path):
        handle, name = tempfile.mkstemp(prefix=".voicechat-", suffix=".tmp", dir=None if streamed else target.parent)
        os.close(handle)
    beside = Path(name)
    try:
        with _failures_named(path):
            yield beside
            if streamed:
                with beside.open("rb") as source, _opened(target) as sink:
                    shutil.copyfileobj(source, sink)
            else:
                beside.chmod(_permissions(target))
                beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _descriptor(path: str) -> int | None:
    """The number of the open file that a name such as /dev/fd/63 or /dev/stdout stands for."""
    match = DESCRIPTOR.fullmatch(path)
    return int(match[1]) if match else STANDARD.get(path)


def _require_writable(number: int, shown: str) -> None:
    try:
        flags = fcntl.fcntl(number, fcntl.F_GETFL)
    except (OSError, OverflowError):
        raise OutputError(f"{shown} is not open; name a file, or open it in the shell") from None
    if flags & os.O_ACCMODE == os.O_RDONLY:
        raise OutputError(f"{shown} is open for reading only; choose another name")


def _opened(target: Path) -> BinaryIO:
    """What this process has open is written on where it stands, anything else is opened anew."""
    number = _descriptor(os.fspath(target))
    return target.open("wb") if number is None else os.fdopen(os.dup(number), "wb")


def _is_replaceable(target: Path) -> bool:
    """Whether nothing or a plain file is there."""
    return _descriptor(os.fspath(target)) is None and (target.is_file() or not target.exists())


def _mode(path: str | os.PathLike[str]) -> int | None:
    """Kind and permissions of what a path leads to; None when there is nothing."""
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _permissions(target: Path) -> int:
    """Permissions of the old file, or those that a new file gets."""
    if target.exists():
        return target.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


@contextmanager
def _failures_named(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise VoiceChatError(f"{os.fspath(path)} was not written: {error.strerror or error}") from error
