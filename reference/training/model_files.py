"""The small model's configuration, and weights as files between one step and the next.

Weights travel under their canonical names in float32, in files of at most 15 MiB.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from reference.model import VoiceChat
from reference.training.options import SETTINGS
from reference.training.vocabularies import BOS, EOS, Pieces
from voicechat_mlx.config import VoiceChatConfig

LARGEST_FILE = 15 * 2**20


def model_values(arguments: argparse.Namespace) -> dict[str, Any]:
    """settings/…/model.json: the checkpoint's config.json but for the RNNT vocabulary. A trial has the full model."""
    folder = "smoke" if arguments.settings == "smoke" else "full"
    values: dict[str, Any] = json.loads((SETTINGS / folder / "model.json").read_text(encoding="utf-8"))
    return values


def new_model(arguments: argparse.Namespace, device: torch.device) -> VoiceChat:
    """The whole model with fresh weights; those that torch's layers do not draw are drawn here."""
    config = VoiceChatConfig.from_dict(model_values(arguments))
    model = VoiceChat(config)
    talker = model.talker
    width, rank = config.tts_config.hidden_size, config.tts_config.mog_head.low_rank
    with torch.no_grad():
        nn.init.normal_(talker.bos_emb)
        nn.init.normal_(talker.null_emb)
        nn.init.normal_(model.audio_prompt_latent)
        nn.init.normal_(talker.mog_head.low_mat, std=rank**-0.5)
        nn.init.constant_(talker.gated_fusion_audio_text.residual_scale, 0.5)
        for flags in (talker.embed_subword.subword_flag_emb.cont_emb, talker.embed_subword.bos_eos_emb.special_emb):
            nn.init.normal_(flags.weight, std=width**-0.5)
            flags.weight[0] = 0
        nn.init.normal_(model.embed_tokens.weight, std=0.5)
    return model.to(device)


def set_text_vocabulary(model: VoiceChat, folder: Path) -> None:
    """Characters and flag tables of the talker from WORK/data/tokenizer.json."""
    vocabulary = read_tokenizer(folder).get_vocab(with_added_tokens=True)
    encoder = model.talker.embed_subword
    encoder.set_vocabulary(vocabulary)
    with torch.no_grad():
        continuation, special = encoder.subword_flag_emb.is_continuation, encoder.bos_eos_emb.special_flags
        continuation.zero_()
        special.zero_()
        for token, index in vocabulary.items():
            continuation[index] = int(not token.startswith(("Ġ", "▁", "<")))
        special[BOS], special[EOS] = 1, 2


def read_pieces(folder: Path) -> Pieces:
    """WORK/data/pieces.json."""
    stored = json.loads((folder / "pieces.json").read_text())
    return Pieces(len(stored["vocabulary"]), [(left, right) for left, right in stored["merges"]])


def read_tokenizer(folder: Path) -> Tokenizer:
    """WORK/data/tokenizer.json."""
    tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return tokenizer


def save_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """weights-00.safetensors, weights-01 … in `folder`, each of at most `LARGEST_FILE` bytes."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous().clone()
        if size + tensor.nbytes > LARGEST_FILE and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    names = [f"weights-{index:02d}.safetensors" for index in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, folder / f"{name}.new")
        os.replace(folder / f"{name}.new", folder / name)
    for old in folder.glob("weights-*.safetensors"):
        if old.name not in names:
            old.unlink()


def load_tensors(folder: Path) -> dict[str, Tensor]:
    """What `save_tensors` wrote. Raises FileNotFoundError where there is nothing."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob("weights-*.safetensors")):
        tensors |= load_file(path)
    if not tensors:
        raise FileNotFoundError(f"{folder} holds no weights; run that step first")
    return tensors


def load_earlier(model: VoiceChat, folder: Path) -> None:
    """Begin with the weights that an earlier run left in `folder`, if it left any."""
    if list(folder.glob("weights-*.safetensors")):
        load_into(model, load_tensors(folder))


def part_of(model: VoiceChat, prefixes: Iterable[str]) -> dict[str, Tensor]:
    """The tensors of the model whose names begin so."""
    chosen = tuple(prefixes)
    return {name: tensor for name, tensor in model.state_dict().items() if name.startswith(chosen)}


def load_into(model: VoiceChat, tensors: Mapping[str, Tensor]) -> None:
    """Put tensors where their names say; every name must exist."""
    unexpected = model.load_state_dict(tensors, strict=False).unexpected_keys
    assert not unexpected, f"the model has no {unexpected}"


@torch.no_grad()
def round_to_bf16(module: nn.Module) -> None:
    """Every weight to the nearest bfloat16, in place: what the checkpoint will hold."""
    for tensor in module.parameters():
        tensor.copy_(tensor.to(torch.bfloat16).to(tensor.dtype))
