"""Output files: checked before any work, written beside their place, moved there when whole.

A failure at any moment leaves the old file or none. Folders are never made for the caller.
Devices and pipes (`/dev/null`, `>(command)`) cannot be replaced by a file, so they are written directly.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from voicechat_mlx.errors import OutputError, VoiceChatError


def check_output(path: str | os.PathLike[str]) -> Path:
    """A path to write → the same path with links followed. Raises OutputError when it cannot be written."""
    shown = os.fspath(path)
    try:
        target = Path(path).resolve()
        folder_exists, is_folder = target.parent.is_dir(), target.is_dir()
        exists = target.exists()
    except (OSError, ValueError, RuntimeError) as error:  # too long a name, a zero byte, a loop of links
        raise OutputError(f"{shown!r} cannot be an output file ({error}); choose another name") from None
    if is_folder:
        raise OutputError(f"{shown} is a folder; name a file in it")
    if not folder_exists:
        raise OutputError(f"the folder of {shown} does not exist; make it with: mkdir -p {target.parent}")
    if exists and not os.access(target, os.W_OK):
        raise OutputError(f"{shown} is write-protected; choose another name or allow writing")
    if _is_replaceable(target) and not os.access(target.parent, os.W_OK | os.X_OK):
        raise OutputError(f"the folder {target.parent} is not writable; choose another place for {shown}")
    return target


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields the place to write; what lies there when the block ends takes the place of `path`.

    Raises OutputError when `path` cannot be written, VoiceChatError when writing fails midway.
    """
    target = check_output(path)
    if not _is_replaceable(target):
        with _failures_named(path):
            yield target
        return
    with _failures_named(path):
        handle, name = tempfile.mkstemp(prefix=".voicechat-", suffix=".tmp", dir=target.parent)
        os.close(handle)
    beside = Path(name)
    try:
        with _failures_named(path):
            yield beside
            beside.chmod(_mode(target))
            beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _is_replaceable(target: Path) -> bool:
    """Whether nothing or a plain file is there."""
    return target.is_file() or not target.exists()


def _mode(target: Path) -> int:
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
