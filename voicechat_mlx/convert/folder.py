"""The folder that a conversion makes: built beside its place under another name, moved there when it is whole.

An interrupted conversion leaves that other folder with the shards that were finished. The same command again takes
them up; another one throws them away. What lay at the place stays until the new folder is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from voicechat_mlx.errors import OutputError
from voicechat_mlx.memory import in_words

CHECKSUMS = "SHA256SUMS"
"""In the format of `sha256sum -c`. A folder that has it is known as the result of a conversion."""
UNFINISHED = ".unfinished.json"
"""In the other folder: what is being made, and the checksums of the shards that are done."""
BLOCK = 1 << 22


class ResultFolder:
    """One conversion's folder. `check` before any work, then `begin`, `add` for each file, `finish`."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place = Path(os.path.abspath(Path(place).expanduser()))
        self.beside = self.place.with_name(f".{self.place.name}.converting")
        self._old = self.place.with_name(f".{self.place.name}.old")
        self._fingerprint = ""
        self._done: dict[str, str] = {}

    def check(self, source: Path) -> None:
        """Raises OutputError when the place cannot be used."""
        parent = self.place.parent
        if not parent.is_dir():
            raise OutputError(f"the folder of {self.place} does not exist; make it with: mkdir -p {parent}")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise OutputError(f"the folder {parent} is not writable; choose another place for {self.place.name}")
        if self.place.is_symlink() or (self.place.exists() and not self.place.is_dir()):
            raise OutputError(f"{self.place} is not a folder; choose another name for the converted checkpoint")
        place, source = self.place.resolve(), source.resolve()
        if place == source:
            raise OutputError(f"{self.place} is the source itself; choose another name for the converted checkpoint")
        if place.is_relative_to(source):
            raise OutputError(f"{self.place} is inside the source; choose a place outside {source}")
        if source.is_relative_to(place):  # replacing it would throw the source away
            raise OutputError(f"{self.place} holds the source {source}; choose another place")
        if self.place.is_dir() and any(self.place.iterdir()) and not (self.place / CHECKSUMS).is_file():
            raise OutputError(f"{self.place} holds something else than a converted checkpoint; choose another name")

    def begin(self, fingerprint: str) -> tuple[str, ...]:
        """Make the other folder, or find what an interrupted run of the same fingerprint left → its finished shards."""
        self._fingerprint = hashlib.sha256(fingerprint.encode()).hexdigest()
        self._done = self._left_over()
        if not self._done:
            shutil.rmtree(self.beside, ignore_errors=True)
            self.beside.mkdir()
        self._note()
        return tuple(self._done)

    def require_space(self, needed: int) -> None:
        """Raises OutputError when so many bytes do not fit."""
        free = shutil.disk_usage(self.place.parent).free
        if free < needed:
            if not self._done:
                self.discard()
            raise OutputError(f"{self.place.parent} has {in_words(free)} free; {in_words(needed)} will be written")

    def add_shard(self, file: str, write: Callable[[Path], None]) -> None:
        """`write(path)` writes it. It counts as finished from the moment that this returns."""
        self.add(file, write)
        self._note()

    def add(self, file: str, write: Callable[[Path], None]) -> None:
        """Write a file and take its checksum."""
        unfinished = self.beside / f"{file}.tmp"
        unfinished.parent.mkdir(exist_ok=True)
        write(unfinished)
        self._done[file] = checksum(unfinished)
        unfinished.replace(self.beside / file)

    def finish(self) -> None:
        """Write the checksums and move the folder to its place."""
        lines = (f"{digest}  {file}\n" for file, digest in sorted(self._done.items()))
        (self.beside / CHECKSUMS).write_text("".join(lines), encoding="utf-8")
        shutil.rmtree(self._old, ignore_errors=True)
        if self.place.exists():
            self.place.rename(self._old)
        self.beside.rename(self.place)
        (self.place / UNFINISHED).unlink()
        shutil.rmtree(self._old, ignore_errors=True)

    def discard(self) -> None:
        """Throw the other folder away."""
        shutil.rmtree(self.beside, ignore_errors=True)

    def _note(self) -> None:
        """Remember what is done, in one step."""
        note = self.beside / f"{UNFINISHED}.tmp"
        note.write_text(json.dumps({"fingerprint": self._fingerprint, "done": self._done}), encoding="utf-8")
        note.replace(self.beside / UNFINISHED)

    def _left_over(self) -> dict[str, str]:
        """Finished shards of an interrupted run with the same fingerprint, by name, with their checksums."""
        try:
            note = json.loads((self.beside / UNFINISHED).read_text(encoding="utf-8"))
            same = note["fingerprint"] == self._fingerprint
            done = {str(file): str(digest) for file, digest in note["done"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}
        return {file: digest for file, digest in done.items() if (self.beside / file).is_file()} if same else {}


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
