"""`voicechat inspect`: what a checkpoint holds, what is wrong with it, and what it needs."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from voicechat_mlx.cli import options
from voicechat_mlx.cli.streams import say
from voicechat_mlx.errors import CheckpointError

if TYPE_CHECKING:
    from voicechat_mlx.inspection import Inspection
    from voicechat_mlx.weights import Report

NAMES_SHOWN = 6


def add_command(commands: Any) -> None:
    """Register the command with argparse's sub-parsers."""
    parser = commands.add_parser("inspect", help="look into a checkpoint", description=__doc__)
    options.add_model_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Print everything, then raise CheckpointError when the checkpoint cannot be used."""
    from voicechat_mlx.inspection import inspect_checkpoint

    inspection = inspect_checkpoint(arguments.model)
    for line in lines(inspection):
        say(line)
    if inspection.problems:
        count = len(inspection.problems)
        more = f" (and {count - 1} more, listed above)" if count > 1 else ""
        raise CheckpointError(f"{inspection.folder} cannot be used: {inspection.problems[0]}{more}")


def lines(inspection: Inspection) -> Iterator[str]:
    """The report, line by line."""
    from voicechat_mlx.memory import in_words

    report = inspection.report
    yield f"{inspection.folder}"
    for name, size in inspection.files.items():
        yield f"  {name}  {in_words(size)}"
    yield ""
    yield from _network_table(report)
    yield ""
    yield f"quantised   {_quantised(report)}"
    yield f"layout      {len(report.permutations)} kernels stored in PyTorch's order"
    yield f"not needed  {_names(report.not_needed)}"
    yield f"missing     {_names(report.missing)}"
    yield f"extra       {_names(report.unexpected)}"
    yield f"no effect   {_names(inspection.unknown_keys)}"
    for choice, memory in inspection.memory.items():
        sizes = f"{in_words(memory.weights)} of weights, {in_words(memory.per_minute)} more per minute of talk"
        yield f"memory      {sizes} with --dtype {choice}"
    yield f"runs on     {inspection.back_end}"
    yield f"problems    {'none' if not inspection.problems else ''}".rstrip()
    for problem in inspection.problems:
        yield f"  {problem}"


def _network_table(report: Report) -> Iterator[str]:
    from voicechat_mlx.memory import in_words

    yield f"{'network':<12}{'tensors':>8}{'parameters':>16}{'stored':>12}  as"
    rows = list(report.networks.items())
    for name, network in rows:
        numbers = f"{network.tensors:>8}{network.parameters:>16,}{in_words(network.bytes):>12}"
        yield f"{name:<12}{numbers}  {', '.join(network.dtypes)}"
    tensors = sum(network.tensors for _, network in rows)
    parameters = sum(network.parameters for _, network in rows)
    stored = sum(network.bytes for _, network in rows)
    yield f"{'total':<12}{tensors:>8}{parameters:>16,}{in_words(stored):>12}"


def _quantised(report: Report) -> str:
    """`90 modules at 4 bits in groups of 64: …`, one part for each kind."""
    kinds: dict[tuple[int, int], list[str]] = defaultdict(list)
    for path, kind in sorted(report.quantised.items()):
        kinds[kind].append(path)
    parts = [f"{_names(paths)} at {bits} bits in groups of {size}" for (size, bits), paths in sorted(kinds.items())]
    return "; ".join(parts) or "none"


def _names(names: Sequence[str]) -> str:
    """`3: a, b, c`, or `none`."""
    more = ", …" if len(names) > NAMES_SHOWN else ""
    return f"{len(names)}: {', '.join(names[:NAMES_SHOWN])}{more}" if names else "none"
