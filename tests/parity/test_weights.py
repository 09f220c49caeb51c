"""Both sides read the same numbers from a checkpoint, each by its own code."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from tests.parity.pair import Pair
from voicechat_mlx.report.rows import to_numpy


def test_both_sides_hold_the_same_tensors_with_the_same_numbers(pair: Pair) -> None:
    ours, theirs = unpacked(pair.mlx), pair.twin.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        mine, twin = to_numpy(ours[name]), to_numpy(tensor)
        assert sorted(mine.shape) == sorted(twin.shape), name
        # kernels differ in the order of their axes, so the numbers are compared in order of size
        np.testing.assert_allclose(np.sort(mine, axis=None), np.sort(twin, axis=None), rtol=0, atol=1e-6, err_msg=name)


def test_only_the_language_path_of_the_4_bit_checkpoint_is_packed(pair: Pair) -> None:
    packed = {path for path, module in pair.mlx.named_modules() if isinstance(module, QUANTISED)}
    expected = set()
    if pair.twin.config.quantization:
        expected = {"embed_tokens", "lm_head", "function_head"}
        projections = ("in_proj", "out_proj", "q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj")
        llm = (path for path, _ in pair.mlx.named_modules() if path.startswith("llm."))
        expected |= {path for path in llm if path.endswith(projections)}
    assert packed == expected


QUANTISED = (nn.QuantizedLinear, nn.QuantizedEmbedding)


def unpacked(model: nn.Module) -> dict[str, mx.array]:
    """Parameters by name; a packed weight as the numbers that it stands for, without its scales and biases."""
    parameters: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    for path, module in model.named_modules():
        if isinstance(module, QUANTISED):
            parts = [parameters.pop(f"{path}.{part}") for part in ("weight", "scales", "biases")]
            parameters[f"{path}.weight"] = mx.dequantize(*parts, group_size=module.group_size, bits=module.bits)
    return parameters
