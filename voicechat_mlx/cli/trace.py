"""`voicechat trace`: every activation of one run, by name, as a safetensors file."""

from __future__ import annotations

import argparse
import json
from typing import Any

from voicechat_mlx.cli import options
from voicechat_mlx.cli.common import progress_bar
from voicechat_mlx.cli.outputs import check_model_is_kept, check_outputs
from voicechat_mlx.cli.streams import say


def add_command(commands: Any) -> None:
    """Register the command with argparse's sub-parsers."""
    parser = commands.add_parser("trace", help="write every activation of a run", description=__doc__)
    options.add_model_options(parser)
    options.add_question_options(parser)
    parser.add_argument(
        "--output",
        type=options.path,
        required=True,
        metavar="OUT.safetensors",
        help="activations by name, in a file whose name ends in .safetensors",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Same inputs as `generate`; floats are written as float32, ids as int32."""
    outputs = {"--output": arguments.output}
    check_outputs(outputs, arguments.audio)
    question = options.load_question(arguments)
    check_model_is_kept(outputs, arguments.model)
    model = options.load_model(arguments)

    import numpy as np
    from safetensors.numpy import save_file

    from voicechat_mlx.files import replacing
    from voicechat_mlx.trace import trace

    chosen = options.generation_options(arguments)
    with progress_bar() as progress:
        recorded = trace(model, question, progress=progress, **chosen)
    activations = {name: np.ascontiguousarray(array) for name, array in recorded.items()}  # safetensors ignores strides
    about = {"voicechat": json.dumps({**chosen, "dtype": arguments.dtype}, sort_keys=True)}
    with replacing(arguments.output) as place:
        save_file(activations, place, metadata=about)  # one entry only: the order of several is not reproducible
    megabytes = sum(array.nbytes for array in activations.values()) / 1e6
    say(f"{arguments.output}: {len(activations)} activations, {megabytes:.1f} MB")
