"""Convolution kernels in torch's or in MLX's axis order, told apart by the declared shape.

Converters disagree on the order they write, so nothing is transposed blindly: a kernel that has the declared shape
is kept, one that has it after the one permutation of its kind is permuted, anything else is an error.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping

from voicechat_mlx.config import CodecConfig
from voicechat_mlx.names import network_of, published_name

Shape = tuple[int, ...]

KERNELS = {
    "conv1d": (0, 2, 1),  # torch [out, in, k] → [out, k, in]
    "conv2d": (0, 2, 3, 1),  # torch [out, in, kh, kw] → [out, kh, kw, in]
    "conv_transpose1d": (1, 2, 0),  # torch [in, out, k] → [out, k, in]
}
"""Kind of convolution → the axes of a torch kernel in MLX's order."""
KERNEL_NAMES = {
    re.compile(r"perception\.encoder\.pre_encode\.conv\.\d+\.weight"): "conv2d",
    re.compile(r"perception\.encoder\.layers\.\d+\.conv\.(pointwise_conv[12]|depthwise_conv)\.weight"): "conv1d",
    re.compile(r"llm\.layers\.\d+\.mixer\.conv1d\.weight"): "conv1d",
    re.compile(r"codec\.(en|de)coder\.layers\.\d+\.((dwconv|pwconv[12])\.)?weight"): "conv1d",
}
"""Which parameters are kernels; the transposed ones among them come from `transposed_convolutions`."""


def transposed_convolutions(config: CodecConfig) -> frozenset[str]:
    """Names of the decoder's stage starts: one transposed convolution, then its blocks, stage after stage."""
    stages = range(len(config.downsample_rates))
    return frozenset(f"codec.decoder.layers.{stage * (config.blocks_per_stage + 1)}.weight" for stage in stages)


def fit_layout(
    found: Mapping[str, Shape], declared: Mapping[str, Shape], transposed: Collection[str] = ()
) -> tuple[dict[str, Shape], list[str]]:
    """Shapes in the file and in the model, by canonical name → (permutations to apply, problems, one line each).

    Some shapes fit both orders (input channels equal to the kernel length). Such a kernel follows the decisive kernels
    of its network, or of the whole checkpoint when its network has none, or else is taken as it is; when the
    decisive ones disagree among themselves it is a problem.
    """
    permutations: dict[str, Shape] = {}
    problems: list[str] = []
    undecided: dict[str, Shape] = {}
    seen: dict[str, set[str]] = defaultdict(set)
    for name, shape in found.items():
        expected, axes = declared[name], _axes(name, transposed)
        as_torch = axes is not None and len(axes) == len(shape) and tuple(shape[axis] for axis in axes) == expected
        if shape == expected and (axes is None or not as_torch):
            if axes is not None:
                seen[network_of(name)].add("mlx")
        elif shape == expected and axes is not None:
            if not _keeps_order(shape, axes):
                undecided[name] = axes
        elif as_torch and axes is not None:
            permutations[name] = axes
            seen[network_of(name)].add("torch")
        else:
            torch = " or its torch layout" if axes is not None else ""
            problems.append(f"{published_name(name)} is {shape}; expected {expected}{torch}")
    everywhere: set[str] = set().union(*seen.values())
    for name, axes in undecided.items():
        orders = seen[network_of(name)] or everywhere
        if len(orders) > 1:
            problems.append(f"{published_name(name)} is {found[name]}: it fits both layouts and the others are mixed")
        elif orders == {"torch"}:
            permutations[name] = axes
    return permutations, problems


def _axes(name: str, transposed: Collection[str]) -> Shape | None:
    """The permutation that would bring a torch kernel of that name to MLX's order; None: not a kernel."""
    if name in transposed:
        return KERNELS["conv_transpose1d"]
    return next((KERNELS[kind] for pattern, kind in KERNEL_NAMES.items() if pattern.fullmatch(name)), None)


def _keeps_order(shape: Shape, axes: Shape) -> bool:
    """Whether permuting moves no number: the axes longer than 1 stay in sequence."""
    long_axes = [axis for axis in axes if shape[axis] > 1]
    return long_axes == sorted(long_axes)
