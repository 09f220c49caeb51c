"""A checkpoint: a folder in the published layout, a Hub id, or the bundled model.

    config.json   tokenizer.json   model.safetensors, or shards with model.safetensors.index.json
    rnnt_tokenizer/vocab.json, unless config.json holds rnnt_vocabulary

Everything that can be wrong with the files is found when it is opened, before any tensor is read.
"""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

from voicechat_mlx.config import VoiceChatConfig
from voicechat_mlx.errors import CheckpointError
from voicechat_mlx.safetensors_header import TensorHeader, read_header

PACKAGE = Path(__file__).parent
BUNDLED_NAME = "voicechat-nano"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_FILES = (
    "config.json",
    "*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "rnnt_tokenizer/vocab.json",
)
SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)\.safetensors")
BASE_MODEL = "nvidia/NVIDIA-Nemotron-Nano-9B-v2"
"""The language model that the published checkpoints start from; its tokenizer.json is theirs."""
LOCAL_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
"""Why a download cannot be kept, as the system says it."""


def name_of(model: str | os.PathLike[str] | None) -> str:
    """What to call a model: a folder without the way to it, which is nobody's business; a Hub id as it is."""
    if model is None:
        return BUNDLED_NAME
    folder = Path(model).expanduser()
    return folder.resolve().name if folder.is_dir() else str(model)


def bundled_folder(package: Path = PACKAGE) -> Path:
    """Where the bundled model lies: inside an installed package, in a source checkout among the fixtures."""
    installed, checkout = package / "bundled" / BUNDLED_NAME, package.parent / "fixtures" / BUNDLED_NAME
    return installed if installed.is_dir() else checkout


BUNDLED = bundled_folder()


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Files that were found complete, and what they say."""

    folder: Path
    config: VoiceChatConfig
    headers: dict[Path, dict[str, TensorHeader]]
    """safetensors file → its tensors by name."""
    tokenizer: Path
    rnnt_vocabulary: tuple[str, ...]

    @classmethod
    def open(cls, source: str | os.PathLike[str] | None = None) -> Checkpoint:
        """A folder, a Hub id (downloaded), or None for the bundled model. Raises CheckpointError or ConfigError."""
        folder = BUNDLED if source is None else checkpoint_folder(os.fspath(source))
        config = VoiceChatConfig.from_file(folder / "config.json")
        headers = weight_headers(folder)
        tokenizer = folder / "tokenizer.json"
        if not tokenizer.is_file():
            raise CheckpointError(f"{tokenizer} is missing; copy it from the checkpoint's source or from {BASE_MODEL}")
        vocabulary = config.rnnt_vocabulary or read_vocabulary(folder / "rnnt_tokenizer" / "vocab.json")
        expected = config.audio_config.decoder.vocab_size
        if len(vocabulary) != expected:
            raise CheckpointError(
                f"the RNNT vocabulary of {folder} has {len(vocabulary)} pieces; expected {expected} "
                f"(audio_config.decoder.vocab_size)"
            )
        return cls(folder=folder, config=config, headers=headers, tokenizer=tokenizer, rnnt_vocabulary=vocabulary)

    @property
    def is_bundled(self) -> bool:
        """Whether this is the model that comes with the package."""
        return self.folder == BUNDLED

    def tensor_names_and_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of every file, from the headers alone."""
        return {name: tensor.shape for header in self.headers.values() for name, tensor in header.items()}

    def tensors(self) -> dict[str, mx.array]:
        """Every tensor by its name in the files, lazy: its bytes are read when it is first evaluated."""
        tensors: dict[str, mx.array] = {}
        for path in self.headers:
            try:
                loaded = mx.load(str(path))
            except (RuntimeError, ValueError) as error:
                reason = str(error).splitlines()[0]
                raise CheckpointError(f"{path} cannot be loaded ({reason}); download it again") from None
            assert isinstance(loaded, dict)
            tensors |= loaded
        return tensors


def checkpoint_folder(source: str) -> Path:
    """A path as the caller wrote it, or a Hub id (downloaded) → the folder with the files. Raises CheckpointError."""
    path = os.path.expanduser(source)
    if os.path.isdir(path):  # os.path answers False where pathlib raises, for instance on too long a name
        return Path(path)
    if os.path.exists(path):
        raise CheckpointError(f"{source} is a file; give the folder that holds config.json and the weights")
    if not HUB_ID.fullmatch(source):
        raise CheckpointError(f"{source!r} does not exist; give a checkpoint folder or a Hub id (owner/name)")
    try:
        return Path(snapshot_download(source, allow_patterns=list(HUB_FILES)))
    except Exception as error:  # the client's, its transport's and the system's errors have no common base
        raise CheckpointError(f"{source} is not a folder, and {_hub_trouble(error)}") from None


def _hub_trouble(error: Exception) -> str:
    """Why the Hub gave nothing, and what to do about it."""
    if isinstance(error, GatedRepoError):
        return "on the Hub it is gated; accept its terms on its page there, then set HF_TOKEN to your token"
    if isinstance(error, RepositoryNotFoundError):
        return "the Hub has no such model; check the spelling, or for a private one set HF_TOKEN to your token"
    behind = error.__cause__ or error  # the client wraps a lost connection into a remark on its cache
    reason = str(behind).splitlines()[0] if str(behind) else type(behind).__name__
    if isinstance(error, HfHubHTTPError):
        return f"the Hub refused to give it ({reason})"
    if isinstance(error, OSError) and error.errno in LOCAL_TROUBLE:
        return f"its download could not be stored ({reason}); make room, or set HF_HOME to another folder"
    return f"the Hub could not be reached ({reason}); check the network, or give the checkpoint's folder"


def weight_headers(folder: Path) -> dict[Path, dict[str, TensorHeader]]:
    """The weight files and what they hold; no tensor twice, none of the index's missing. Raises CheckpointError."""
    index = folder / "model.safetensors.index.json"
    placed = _read_index(index) if index.is_file() else {}
    paths = sorted({folder / file for file in placed.values()}) or sorted(folder.glob("*.safetensors"))
    if not paths:
        raise CheckpointError(f"{folder} has no *.safetensors file; download the checkpoint again")
    if not placed:
        _require_all_shards(paths)
    for path in paths:
        if not path.is_file():
            raise CheckpointError(f"{path} is missing but {index.name} names it; download the checkpoint again")
    headers = {path: read_header(path) for path in paths}
    where: dict[str, Path] = {}
    for path, header in headers.items():
        for name in header:
            if name in where:
                raise CheckpointError(f"{name} is in both {where[name].name} and {path.name}; remove one of the files")
            where[name] = path
    for name, file in placed.items():
        if where.get(name) != folder / file:
            raise CheckpointError(f"{index.name} places {name} in {file}, which does not hold it; download both again")
    return headers


def _read_index(path: Path) -> dict[str, str]:
    """model.safetensors.index.json → tensor name → file name."""
    values = _read_json(path)
    placed = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(placed, dict) or not placed:
        raise CheckpointError(f"{path} has no weight_map; download it again")
    for file in placed.values():
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(f"{path} names {file!r}, which is not a file beside it; download it again")
    return placed


def _require_all_shards(paths: list[Path]) -> None:
    """Without an index, `model-00001-of-00002.safetensors` still says how many there must be."""
    present = {path.name for path in paths}
    for path in paths:
        match = SHARD.fullmatch(path.name)
        if not match:
            continue
        stem, digits, total = match[1], len(match[2]), match[3]
        for number in range(1, int(total) + 1):
            name = f"{stem}-{number:0{digits}d}-of-{total}.safetensors"
            if name not in present:
                raise CheckpointError(f"{path.parent / name} is missing; download the checkpoint again")


def read_vocabulary(path: Path) -> tuple[str, ...]:
    """vocab.json: a list of pieces, or piece → id with every id from 0 on → pieces by id. Raises CheckpointError."""
    if not path.is_file():
        raise CheckpointError(f"config.json has no rnnt_vocabulary and {path} is missing; download it")
    values = _read_json(path)
    if isinstance(values, dict) and all(isinstance(id, int) for id in values.values()):
        if sorted(values.values()) != list(range(len(values))):
            raise CheckpointError(f"{path}: the ids must be 0 … {len(values) - 1}, each once; download it again")
        values = sorted(values, key=values.__getitem__)
    if not isinstance(values, list) or not all(isinstance(piece, str) for piece in values):
        raise CheckpointError(f"{path} must be a list of pieces or a map from piece to id; download it again")
    return tuple(values)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable JSON ({error}); download it again") from None
