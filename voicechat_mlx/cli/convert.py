"""`voicechat convert`: make a checkpoint that runs here from the publisher's, or quantise one.

Reads tensor by tensor, so an 11B model needs a few GB of memory. An interrupted conversion is taken up by the same
command; until it is whole, nothing is at OUT, or what was there before.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from voicechat_mlx.cli import options
from voicechat_mlx.cli.common import UsageError, progress_bar
from voicechat_mlx.cli.streams import say

if TYPE_CHECKING:
    from voicechat_mlx.convert import Options, Plan


def add_command(commands: Any) -> None:
    """Register the command with argparse's sub-parsers."""
    parser = commands.add_parser("convert", help="convert or quantise a checkpoint", description=__doc__)
    parser.add_argument(
        "source",
        type=options.path,
        metavar="SOURCE",
        help="folder or Hub id: the publisher's float32 file, or any VoiceChat",
    )
    parser.add_argument(
        "out", type=options.path, metavar="OUT", help="folder to make; an earlier conversion there is replaced"
    )
    parser.add_argument(
        "--bits", type=options.whole, choices=(4, 8), help="quantise to so many bits (default: do not quantise)"
    )
    parser.add_argument(
        "--group-size", type=options.whole, choices=(32, 64, 128), help="numbers that share a scale (default: 64)"
    )
    parser.add_argument(
        "--quantize",
        metavar="NETWORKS",
        help="what is quantised: llm (the default), or a list such as llm,talker,perception",
    )
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16", help="of everything else (default: bf16)")
    parser.add_argument(
        "--tokenizer",
        type=options.path,
        metavar="DIR",
        help="folder with tokenizer.json, and for the publisher's source the config.json of its language model",
    )
    parser.add_argument("--dry-run", action="store_true", help="tell what would be written, and write nothing")
    parser.add_argument("--debug", action="store_true", help="tell more, and show where an error happened")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Plan, tell, and unless it is a dry run convert."""
    if arguments.group_size and not (arguments.bits or arguments.quantize):
        raise UsageError("--group-size needs --bits; `voicechat convert --help` lists what there is")
    from voicechat_mlx.convert import convert, plan_conversion

    plan = plan_conversion(arguments.source, _options(arguments), arguments.tokenizer)
    for line in lines(plan):
        say(line)
    if arguments.dry_run:
        say(f"nothing was written; without --dry-run {arguments.out} would hold this")
        return
    with progress_bar("B", unit_scale=True) as progress:
        place = convert(plan, arguments.out, progress)
    say(f"{place} is complete; SHA256SUMS holds the checksums")


def lines(plan: Plan) -> Iterator[str]:
    """What a conversion writes, line by line."""
    from voicechat_mlx.convert.card import quantised_kinds, stored_bytes
    from voicechat_mlx.memory import in_words

    source = plan.source
    yield f"source       {source.checkpoint.folder}, {source.kind} layout"
    yield f"text_config  {source.text_config_origin}"
    yield f"tokenizer    {source.checkpoint.tokenizer}"
    for shard in plan.shards:
        yield f"file         {shard.file}  {len(shard.tensors)} tensors, {in_words(shard.bytes)}"
    for file in ("config.json", "model.safetensors.index.json", "README.md", "SHA256SUMS", *source.extras):
        yield f"file         {file}"
    for kind, size in stored_bytes(plan).items():
        yield f"stored       {in_words(size)} as {kind}"
    for (group_size, bits), paths in quantised_kinds(plan).items():
        yield f"quantised    {len(paths)} modules at {bits} bits in groups of {group_size}"
    for path in plan.left_dense:
        yield f"left dense   {path}: its width is no multiple of {plan.options.group_size}"
    yield f"layout       {plan.permuted} kernels turned from PyTorch's order"
    for name in plan.left_out:
        yield f"left out     {name}: computed anew wherever it is needed"


def _options(arguments: argparse.Namespace) -> Options:
    from voicechat_mlx.convert import Options

    networks = tuple(arguments.quantize.split(",")) if arguments.quantize is not None else ("llm",)
    bits = arguments.bits or (4 if arguments.quantize is not None else None)
    return Options(dtype=arguments.dtype, bits=bits, group_size=arguments.group_size or 64, networks=networks)
