"""Put the trained parts together as one checkpoint in the published layout.

Reads WORK/{data,codec,decoder,perception,duplex,talker}; the refined decoder replaces the codec's. Writes
WORK/checkpoint (or --out): config.json, model.safetensors in bfloat16 under the published names, tokenizer.json,
rnnt_tokenizer/vocab.json, README.md. Reads it back with the twin's own loader, and with voicechat_mlx where MLX is
installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from reference.model import VoiceChat
from reference.training.model_card import model_card
from reference.training.model_files import (
    load_into,
    load_tensors,
    model_values,
    new_model,
    read_pieces,
    set_text_vocabulary,
)
from reference.training.options import step_parser
from reference.weights import FROM_MLX_LAYOUT, load_model
from voicechat_mlx.names import published_name

PARTS = ("codec", "decoder", "perception", "duplex", "talker")
REFINED = "decoder"
"""The part that may hold what the codec holds, and is optional."""
LARGEST = 26_000_000


def assemble(arguments: argparse.Namespace) -> VoiceChat:
    """The whole model from the weights of its parts."""
    model = new_model(arguments, torch.device("cpu"))
    set_text_vocabulary(model, arguments.work / "data")
    filled: set[str] = set()
    for part in PARTS:
        if part == REFINED and not list((arguments.work / part).glob("weights-*.safetensors")):
            continue
        tensors = load_tensors(arguments.work / part)
        twice = filled & tensors.keys() if part != REFINED else tensors.keys() - filled
        assert not twice, f"{part} and the parts before it disagree about who holds {sorted(twice)[0]}"
        filled |= tensors.keys()
        load_into(model, tensors)
    missing = {name for name, _ in model.named_parameters()} - filled
    assert not missing, f"no part holds {sorted(missing)[0]}"
    return model.eval()


def published_tensors(model: VoiceChat) -> dict[str, Tensor]:
    """Published name → tensor: bfloat16 or int32, kernels with their channels last."""
    to_mlx = {
        f"{path}.weight": inverse(FROM_MLX_LAYOUT[type(module)])
        for path, module in model.named_modules()
        if type(module) in FROM_MLX_LAYOUT
    }
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name in to_mlx:
            tensor = tensor.permute(to_mlx[name])
        dtype = torch.bfloat16 if tensor.is_floating_point() else torch.int32
        tensors[published_name(name)] = tensor.to(dtype).contiguous()
    return tensors


def inverse(permutation: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes this one."""
    return tuple(permutation.index(axis) for axis in range(len(permutation)))


def write(model: VoiceChat, arguments: argparse.Namespace, folder: Path) -> None:
    """All files of the checkpoint."""
    (folder / "rnnt_tokenizer").mkdir(parents=True, exist_ok=True)
    pieces = read_pieces(arguments.work / "data").vocabulary
    config = model_values(arguments) | {"rnnt_vocabulary": pieces}
    (folder / "config.json").write_text(json.dumps(config, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "rnnt_tokenizer" / "vocab.json").write_text(
        json.dumps(pieces, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    shutil.copyfile(arguments.work / "data" / "tokenizer.json", folder / "tokenizer.json")
    save_file(published_tensors(model), folder / "model.safetensors", {"format": "mlx"})
    (folder / "model.safetensors").chmod(0o644)
    (folder / "README.md").write_text(model_card(read_figures(arguments)), encoding="utf-8")
    if arguments.figures is not None:
        shutil.copyfile(arguments.figures, folder / "figures.json")


def read_figures(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `evaluate` found, where it is given; else what each part found while it was trained."""
    if arguments.figures is not None:
        return {"measured": json.loads(arguments.figures.read_text())}
    paths = {part: arguments.work / part / "figures.json" for part in PARTS}
    return {part: json.loads(path.read_text()) for part, path in paths.items() if path.is_file()}


def check(model: VoiceChat, folder: Path) -> None:
    """Read the checkpoint back: what comes is what went, rounded."""
    size = (folder / "model.safetensors").stat().st_size
    assert size <= LARGEST, f"{size} bytes are more than {LARGEST}"
    loaded = load_model(folder).state_dict()
    for name, tensor in model.state_dict().items():
        expected = tensor.to(torch.bfloat16).float() if tensor.is_floating_point() else tensor
        assert torch.equal(loaded[name], expected), f"{name} did not come back as it went"
    parameters = sum(tensor.numel() for tensor in loaded.values())
    print(f"export: {folder}, {parameters / 1e6:.2f} M numbers, {size / 1e6:.2f} MB, reads back equal", flush=True)
    if importlib.util.find_spec("mlx") is not None:
        import voicechat_mlx

        voicechat_mlx.load(folder)
        print("export: voicechat_mlx.load accepts it", flush=True)


def main() -> None:
    """The command."""
    parser = step_parser("export", __doc__)
    parser.add_argument("--out", type=Path, help="the checkpoint's folder; WORK/checkpoint by default")
    parser.add_argument("--figures", type=Path, help="what evaluate --json wrote: for the model card and figures.json")
    arguments = parser.parse_args()
    folder = arguments.out or arguments.work / "checkpoint"
    model = assemble(arguments)
    write(model, arguments, folder)
    check(model, folder)


if __name__ == "__main__":
    main()
