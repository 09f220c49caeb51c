"""A run's results as a few files of at most 16 MiB, and back: weights as they are, everything small in one archive."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

TRAINED = ("codec", "decoder", "perception", "duplex", "talker")
SMALL = ("figures.json", "curve.*", "codes.*", "samples/*", "*.log", "tokenizer.json", "pieces.json")
ARCHIVE = "small.tar.gz"


def pack(work: Path, folder: Path) -> None:
    """WORK → `folder`: STEP-weights-NN.safetensors and small.tar.gz. What is not there is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    for step in TRAINED:
        for path in sorted((work / step).glob("weights-*.safetensors")):
            shutil.copyfile(path, folder / f"{step}-{path.name}")
    with tarfile.open(folder / ARCHIVE, "w:gz") as archive:
        for step in (*TRAINED, "logs", "data"):
            for pattern in SMALL:
                for path in sorted((work / step).glob(pattern)):
                    content = path.read_bytes()  # at once: a step may be writing the file
                    entry = tarfile.TarInfo(str(path.relative_to(work)))
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))


def unpack(folder: Path, work: Path) -> None:
    """What `pack` wrote → WORK."""
    with tarfile.open(folder / ARCHIVE) as archive:
        archive.extractall(work, filter="data")
    for path in sorted(folder.glob("*-weights-*.safetensors")):
        step, _, name = path.name.partition("-")
        (work / step).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, work / step / name)
