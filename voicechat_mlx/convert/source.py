"""What is converted: a folder in the published layout, or the publisher's own, with everything it lacks brought along.

Opening reads configuration, headers and tokenizer; no tensor.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from voicechat_mlx.checkpoint import BASE_MODEL, Checkpoint, checkpoint_folder, read_vocabulary, weight_headers
from voicechat_mlx.config import VoiceChatConfig, faults_named
from voicechat_mlx.convert.nemo import check_frame_length, is_nemo, published_values, spelled_out
from voicechat_mlx.convert.text_config import check_text_config, read_text_config, told_from
from voicechat_mlx.errors import CheckpointError, ConfigError
from voicechat_mlx.names import canonical_name, published_name
from voicechat_mlx.text import CharacterTable, TextTokenizer

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
SPELLING = "talker.embed_subword.embed_tokens.weight"
"""The embedding of single characters."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A checkpoint to convert, in the words of the published schema."""

    checkpoint: Checkpoint
    values: dict[str, Any]
    """config.json of the result, but for the quantisation map."""
    extras: dict[str, Path]
    """Files that are copied as they are, by their name in the result."""
    kind: str
    text_config_origin: str

    @property
    def config(self) -> VoiceChatConfig:
        """The checked configuration."""
        return self.checkpoint.config

    def tensors(self) -> dict[str, mx.array]:
        """Every tensor, lazy."""
        return self.checkpoint.tensors()


def open_source(source: str | os.PathLike[str], tokenizer: str | os.PathLike[str] | None = None) -> Source:
    """A folder or Hub id, and a folder to take the tokenizer (and the language model's config.json) from.

    Raises CheckpointError or ConfigError for what is missing or does not fit.
    """
    folder = checkpoint_folder(os.fspath(source))
    headers = weight_headers(folder)
    shapes = {name: tensor.shape for header in headers.values() for name, tensor in header.items()}
    base = _tokenizer_folder(tokenizer)
    token_file = (base or folder) / "tokenizer.json"
    if not token_file.is_file():
        raise CheckpointError(f"{token_file} is missing; give --tokenizer a folder that has it, such as {BASE_MODEL}'s")
    tokens = TextTokenizer(token_file)
    config_file = folder / "config.json"
    stored = _read_config(config_file)
    with faults_named(config_file):
        if is_nemo(stored):
            values, config, origin = _from_publisher(stored, base, shapes, tokens)
        else:
            values, config, origin = stored, VoiceChatConfig.from_dict(stored), "the source's config.json"
    vocabulary = config.rnnt_vocabulary or read_vocabulary(folder / "rnnt_tokenizer" / "vocab.json")
    expected = config.audio_config.decoder.vocab_size
    if len(vocabulary) != expected:
        raise CheckpointError(f"the RNNT vocabulary of {folder} has {len(vocabulary)} pieces; expected {expected}")
    CharacterTable.build(
        tokens.vocabulary,
        vocab_size=config.text_config.vocab_size,
        char_vocab_size=config.tts_config.character_encoder.char_vocab_size,
    )
    return Source(
        checkpoint=Checkpoint(
            folder=folder,
            config=dataclasses.replace(config, rnnt_vocabulary=vocabulary),
            headers=headers,
            tokenizer=token_file,
            rnnt_vocabulary=vocabulary,
        ),
        values={**values, "rnnt_vocabulary": list(vocabulary)},
        extras=_extras(folder, token_file.parent),
        kind="the publisher's" if is_nemo(stored) else "published",
        text_config_origin=origin,
    )


def _from_publisher(
    nemo: Mapping[str, Any], base: Path | None, shapes: Mapping[str, tuple[int, ...]], tokens: TextTokenizer
) -> tuple[dict[str, Any], VoiceChatConfig, str]:
    """The publisher's config.json → values of the schema, the same checked, and where text_config came from."""
    canonical = {canonical_name(name) or name: shape for name, shape in shapes.items()}
    if SPELLING not in canonical:
        raise CheckpointError(f"{published_name(SPELLING)} is missing; download the source again")
    text, origin = read_text_config(base)
    values = published_values(nemo, text, canonical[SPELLING][0], tokens.vocabulary)
    try:
        config = VoiceChatConfig.from_dict(values)
    except ConfigError as error:
        raise ConfigError(f"{error}; {told_from(origin)}") from None
    check_text_config(config.text_config, canonical, origin)
    check_frame_length(nemo, config)
    return spelled_out(config), config, origin


def _read_config(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; take the config.json that belongs to the weights") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not readable JSON ({error}); download it again") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a JSON object, found {type(values).__name__}")
    return values


def _tokenizer_folder(tokenizer: str | os.PathLike[str] | None) -> Path | None:
    if tokenizer is None:
        return None
    folder = Path(tokenizer).expanduser()
    if not folder.is_dir():
        raise CheckpointError(
            f"--tokenizer {os.fspath(tokenizer)} is not a folder; give the one that holds tokenizer.json"
        )
    return folder


def _extras(folder: Path, tokenizer: Path) -> dict[str, Path]:
    """Tokenizer files, the RNNT tokenizer's, licences: name in the result → file."""
    extras = {name: tokenizer / name for name in TOKENIZER_FILES if (tokenizer / name).is_file()}
    pieces = folder / "rnnt_tokenizer"
    if pieces.is_dir():
        extras |= {f"rnnt_tokenizer/{path.name}": path for path in sorted(pieces.iterdir()) if path.is_file()}
    licences = (path for pattern in ("LICENSE*", "NOTICE*") for path in sorted(folder.glob(pattern)))
    return extras | {path.name: path for path in licences if path.is_file()}
