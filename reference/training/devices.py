"""Where a step runs, and which of its modules are compiled."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn


def compile_blocks(root: nn.Module, *kinds: type[nn.Module]) -> None:
    """torch.compile every module of these kinds in `root`; what cannot be compiled runs as it is."""
    import torch._dynamo

    config: Any = torch._dynamo.config
    config.suppress_errors = True
    for limit in ("recompile_limit", "cache_size_limit"):
        if hasattr(config, limit):
            setattr(config, limit, 64)
    for module in root.modules():
        if isinstance(module, kinds):
            module.compile(dynamic=False)


def choose_device(arguments: argparse.Namespace) -> torch.device:
    """The device that the command line names, made the default; matrix products in TF32 where it has it."""
    name = arguments.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda":
        torch.set_default_device(device)
    elif arguments.settings == "smoke":
        torch.set_num_threads(1)  # everything is tiny
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(arguments.seed)
    return device
