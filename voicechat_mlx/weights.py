"""From the tensors of a checkpoint to a filled model: names, layout, quantisation, precision, strictly.

Unusual: nothing is guessed. Names follow a table, layouts follow the declared shapes (`layout`), quantised modules
need scales, biases and an entry in the map (`quantised`), and a tensor too many or too few is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

from voicechat_mlx.config import VoiceChatConfig
from voicechat_mlx.errors import CheckpointError
from voicechat_mlx.health import SIZED_BY_WEIGHTS, fault, table_problems
from voicechat_mlx.layout import fit_layout, transposed_convolutions
from voicechat_mlx.names import NETWORKS, OTHER, canonical_name, network_of, published_name
from voicechat_mlx.precision import Precision, dtype_name
from voicechat_mlx.quantised import MODULE_QUANTISED_SUFFIXES, find_quantised

__all__ = [
    "MODULE_QUANTISED_SUFFIXES",
    "SIZED_BY_WEIGHTS",
    "NetworkReport",
    "Report",
    "canonical_name",
    "load_weights",
    "published_name",
    "survey",
]

NAMES_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class NetworkReport:
    """What a checkpoint holds for one network, as stored in the file."""

    tensors: int = 0
    parameters: int = 0
    """Numbers of the model; a packed weight counts what it stands for, its scales and biases do not count."""
    bytes: int = 0
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """How a checkpoint fits a model. Names are the checkpoint's; module paths of `quantised` are canonical."""

    networks: dict[str, NetworkReport]
    quantised: dict[str, tuple[int, int]]
    """Module path → (group_size, bits)."""
    permutations: dict[str, tuple[int, ...]]
    """Canonical name → axes, for every kernel that was stored in torch's layout."""
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    not_needed: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """One line for each reason why the checkpoint cannot be loaded, missing and unexpected tensors included."""


def survey(model: nn.Module, tensors: Mapping[str, mx.array], config: VoiceChatConfig) -> Report:
    """Compare a checkpoint with a freshly made model, by names, shapes and dtypes; reads only the index tables."""
    found: dict[str, mx.array] = {}
    not_needed, problems = [], []
    for published, tensor in tensors.items():
        name = canonical_name(published)
        if name is None:
            not_needed.append(published)
        elif name in found:
            problems.append(f"{published} and another tensor are both {name}; keep one of them")
        else:
            found[name] = tensor
    declared: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    quantised = find_quantised(model, declared, found, config.quantization)
    missing = tuple(sorted(published_name(name) for name in declared.keys() - found.keys()))
    unexpected = tuple(sorted(published_name(name) for name in found.keys() - declared.keys() - quantised.names))
    plain = {name: array for name, array in declared.items() if name in found and name not in quantised.names}
    fixed = {name: array.shape for name, array in plain.items() if name not in SIZED_BY_WEIGHTS}
    permutations, layout_problems = fit_layout(
        {name: found[name].shape for name in fixed}, fixed, transposed_convolutions(config.codec_config)
    )
    problems += _count("missing", missing) + _count("unexpected", unexpected) + list(quantised.problems)
    problems += layout_problems + [line for name in plain for line in _dtype(name, found[name], plain[name])]
    problems += table_problems(found, declared, config)
    return Report(
        networks=_networks(found, quantised.modules),
        quantised=quantised.modules,
        permutations=permutations,
        missing=missing,
        unexpected=unexpected,
        not_needed=tuple(not_needed),
        problems=tuple(problems),
    )


def load_weights(
    model: nn.Module, tensors: MutableMapping[str, mx.array], config: VoiceChatConfig, *, precision: Precision
) -> Report:
    """Fill every parameter of `model` from `tensors` (names as in the files) and return what was found.

    Quantised modules are exchanged for MLX's, kernels are brought to MLX's layout, and floats are cast to
    `precision`. `tensors` is emptied on the way: each tensor is read, checked and handed over one at a time, so no
    more than one is held twice. Raises CheckpointError for anything missing, unexpected, misshapen, all zero, NaN, or
    pointing beyond its table.
    """
    report = survey(model, tensors, config)
    if report.problems:
        shown = "; ".join(report.problems[:3])
        more = f"; and {len(report.problems) - 3} more problems" if len(report.problems) > 3 else ""
        raise CheckpointError(shown + more)
    specs = {path: {"group_size": size, "bits": bits} for path, (size, bits) in report.quantised.items()}
    nn.quantize(model, class_predicate=lambda path, _: specs.get(path, False))
    filled: list[tuple[str, mx.array]] = []
    for published in list(tensors):
        name, tensor = canonical_name(published), tensors.pop(published)
        if name is None:
            continue
        if name in report.permutations:
            tensor = mx.contiguous(mx.transpose(tensor, report.permutations[name]))
        tensor = tensor.astype(precision.dtype(name, tensor.dtype))
        trouble = fault(name, tensor)
        if trouble:
            raise CheckpointError(f"{published} {trouble}; the file is damaged, download the checkpoint again")
        filled.append((name, tensor))
    model.update(tree_unflatten(filled))
    return report


def _count(what: str, names: tuple[str, ...]) -> list[str]:
    """`["2 tensors are missing: a, b"]`, naming the first few; [] when there are none."""
    if not names:
        return []
    noun = "tensor is" if len(names) == 1 else "tensors are"
    more = ", …" if len(names) > NAMES_SHOWN else ""
    return [f"{len(names)} {noun} {what}: {', '.join(names[:NAMES_SHOWN])}{more}"]


def _dtype(name: str, found: mx.array, declared: mx.array) -> list[str]:
    """A line when one of the two holds integers and the other does not."""
    floating = [mx.issubdtype(array.dtype, mx.floating) for array in (found, declared)]
    if floating[0] == floating[1]:
        return []
    kind = "floating point numbers" if floating[1] else "integers"
    return [f"{published_name(name)} holds {dtype_name(found.dtype)}; expected {kind}"]


def _networks(found: dict[str, mx.array], quantised: dict[str, tuple[int, int]]) -> dict[str, NetworkReport]:
    """Totals for each network, in the order in which the sound passes through them."""
    order = [*dict.fromkeys(NETWORKS.values()), OTHER]
    reports: dict[str, NetworkReport] = {}
    for name, tensor in sorted(found.items(), key=lambda item: order.index(network_of(item[0]))):
        network = network_of(name)
        so_far = reports.get(network, NetworkReport())
        module, _, leaf = name.rpartition(".")
        size = tensor.size
        if module in quantised:
            size = {"weight": size * 32 // quantised[module][1], "scales": 0, "biases": 0}.get(leaf, size)
        reports[network] = NetworkReport(
            tensors=so_far.tensors + 1,
            parameters=so_far.parameters + size,
            bytes=so_far.bytes + tensor.nbytes,
            dtypes=tuple(sorted({*so_far.dtypes, dtype_name(tensor.dtype)})),
        )
    return reports
