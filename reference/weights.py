"""A checkpoint folder → the twin's parameters in float32.

Unusual: convolution kernels may be stored the MLX way (channels last) or the torch way, the declared shape decides; and
any weight may be affine-quantised, w = scale · q + bias for each group of values along the last axis.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from reference.model import VoiceChat
from voicechat_mlx.config import VoiceChatConfig
from voicechat_mlx.errors import CheckpointError
from voicechat_mlx.weights import canonical_name

FROM_MLX_LAYOUT: dict[type[nn.Module], tuple[int, ...]] = {
    nn.Conv1d: (0, 2, 1),  # (out, k, in) → (out, in, k)
    nn.Conv2d: (0, 3, 1, 2),  # (out, kh, kw, in) → (out, in, kh, kw)
    nn.ConvTranspose1d: (2, 0, 1),  # (out, k, in) → (in, out, k)
}


def load_model(folder: Path) -> VoiceChat:
    """config.json, weights and tokenizer.json → the whole model. Raises CheckpointError or ConfigError."""
    config = VoiceChatConfig.from_file(folder / "config.json")
    state = load_state(folder, config)
    tables = ("subword_flag_emb.is_continuation", "bos_eos_emb.special_flags")
    missing = [name for name in tables if f"talker.embed_subword.{name}" not in state]
    if missing:
        raise CheckpointError(f"{folder} lacks talker.embed_subword.{missing[0]}; download the checkpoint again")
    continuation, special = (len(state[f"talker.embed_subword.{name}"]) for name in tables)
    model = VoiceChat(config, (continuation, special))
    try:
        model.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise CheckpointError(f"{folder} does not fit its config.json: {' '.join(str(error).split())}") from None
    model.talker.embed_subword.set_vocabulary(read_vocabulary(folder / "tokenizer.json"))
    return model.eval()


def load_state(folder: Path, config: VoiceChatConfig) -> dict[str, Tensor]:
    """Canonical name → tensor, dequantised, torch layout, float32 or int64. Raises CheckpointError."""
    raw = read_tensors(folder)
    with torch.device("meta"):
        declared = VoiceChat(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in declared.state_dict().items()}
    permutations = {
        f"{path}.weight": FROM_MLX_LAYOUT[type(module)]
        for path, module in declared.named_modules()
        if type(module) in FROM_MLX_LAYOUT
    }
    state = {}
    for name, tensor in raw.items():
        if _is_part_of_quantised(name, raw):
            continue
        if tensor.dtype == torch.uint32:
            tensor = _dequantise_module(name, raw, shapes)
        tensor = tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)
        if name in permutations:
            tensor = to_torch_layout(name, tensor, shapes[name], permutations[name])
        state[name] = tensor
    return state


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All needed tensors of `model.safetensors`, or of the shards that its index names, by canonical name."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    else:
        files = ["model.safetensors"]
    tensors: dict[str, Tensor] = {}
    for file in files:
        if not (folder / file).is_file():
            raise CheckpointError(f"{folder / file} is missing; download the checkpoint again")
        for name, tensor in load_file(folder / file).items():
            canonical = canonical_name(name)
            if canonical is not None:
                tensors[canonical] = tensor
    return tensors


def to_torch_layout(name: str, tensor: Tensor, shape: tuple[int, ...], permutation: tuple[int, ...]) -> Tensor:
    """A kernel of the declared shape is kept, one that has it after the permutation permuted; else CheckpointError."""
    if tuple(tensor.shape) == shape:
        return tensor
    if tensor.ndim == len(permutation) and tuple(tensor.permute(permutation).shape) == shape:
        return tensor.permute(permutation).contiguous()
    raise CheckpointError(f"{name} is {tuple(tensor.shape)}; expected {shape} or its channels-last layout")


def dequantise(packed: Tensor, scales: Tensor, biases: Tensor, width: int) -> Tensor:
    """packed uint32 (…, width · bits / 32), scales and biases (…, width / group) → float32 (…, width).

    The bits of a row are one stream, least significant first: value k holds the bits k · bits … (k + 1) · bits - 1.
    """
    bits = packed.shape[-1] * 32 // width
    octets = packed.contiguous().view(torch.uint8)
    stream = (octets.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8)) & 1
    digits = torch.unflatten(stream.flatten(-2), -1, (width, bits))
    q = (digits << torch.arange(bits, dtype=torch.uint8)).sum(-1, dtype=torch.uint8)
    grouped = torch.unflatten(q, -1, (scales.shape[-1], -1)).float()
    return (scales.float().unsqueeze(-1) * grouped + biases.float().unsqueeze(-1)).flatten(-2)


def _dequantise_module(name: str, raw: dict[str, Tensor], shapes: dict[str, tuple[int, ...]]) -> Tensor:
    path = name.removesuffix(".weight")
    for part in (f"{path}.scales", f"{path}.biases"):
        if part not in raw:
            raise CheckpointError(f"{name} is quantised but {part} is missing; download the checkpoint again")
    if name not in shapes:
        raise CheckpointError(f"{name} is quantised but the model has no such weight")
    return dequantise(raw[name], raw[f"{path}.scales"], raw[f"{path}.biases"], shapes[name][-1])


def _is_part_of_quantised(name: str, raw: dict[str, Tensor]) -> bool:
    """Whether `name` holds the scales or biases of a packed weight."""
    path, _, part = name.rpartition(".")
    weight = raw.get(f"{path}.weight")
    return part in ("scales", "biases") and weight is not None and weight.dtype == torch.uint32


def read_vocabulary(path: Path) -> dict[str, int]:
    """tokenizer.json → token → id, added tokens included. Raises CheckpointError."""
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; the talker spells text with the tokenizer's single characters")
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    return vocabulary | {token["content"]: token["id"] for token in tokenizer.get("added_tokens", [])}
