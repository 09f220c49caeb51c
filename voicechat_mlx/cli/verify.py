"""`voicechat verify`: prove on your checkpoint that every block computes what the PyTorch twin computes.

One block of each side is in memory at a time. Needs PyTorch and a source checkout. The exit code is 1 when a block
differs or a tensor looks damaged.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from pathlib import Path
from typing import Any

from voicechat_mlx.cli import options
from voicechat_mlx.cli.common import BUNDLED_QUESTION, UsageError, progress_bar
from voicechat_mlx.cli.streams import say
from voicechat_mlx.errors import InputError, OutputError, VoiceChatError
from voicechat_mlx.names import DTYPES


def add_command(commands: Any) -> None:
    """Register the command with argparse's sub-parsers."""
    parser = commands.add_parser("verify", help="compare with the PyTorch twin, block by block", description=__doc__)
    options.add_model_options(parser)
    parser.add_argument(
        "--audio",
        type=options.path,
        default=str(BUNDLED_QUESTION),
        metavar="IN",
        help="speech to go through (default: a question)",
    )
    parser.add_argument("--seconds", type=options.number, default=2.0, metavar="S", help="how much of it (default: 2)")
    parser.add_argument(
        "--report", type=options.path, metavar="DIR", help="also write verify.md, verify.json and verify.png there"
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, default="auto", help="precision of MLX's side (default: auto, by machine)"
    )
    parser.add_argument(
        "--against",
        type=options.path,
        metavar="MODEL",
        help="another checkpoint for the twin: see what quantising did, judge nothing",
    )
    parser.add_argument("--force", action="store_true", help="go on although memory will not do")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Print the table and the figures, then raise VoiceChatError when anything is wrong."""
    if not 0 < arguments.seconds <= 60:
        raise UsageError(f"--seconds {arguments.seconds:g} is not a length from 0.3 to 60")
    folder = check_report_folder(arguments.report) if arguments.report else None
    from voicechat_mlx.verify import require_twin, verify

    require_twin()
    with progress_bar("block") as progress:
        found = verify(
            arguments.model,
            arguments.audio,
            arguments.seconds,
            arguments.dtype,
            against=arguments.against,
            force=arguments.force,
            progress=progress,
        )

    from voicechat_mlx.report.rows import first_failure
    from voicechat_mlx.verify.writing import text, write

    say(text(found))
    if folder:
        folder.mkdir(exist_ok=True)
        write(found, folder)
        say(f"{folder} holds verify.md, verify.json and verify.png")
    failure = first_failure(found.rows)
    if failure:
        where = f"{failure.layer} ({failure.section}): {failure.measured}, tolerance {failure.allowed}"
        raise VoiceChatError(f"the first block that diverges is {where}")
    if found.flags:
        raise VoiceChatError(f"{found.flags[0].name} {found.flags[0].trouble}; download the checkpoint again")


def check_report_folder(name: str) -> Path:
    """DIR is made when it is missing, but not its parents. Raises OutputError or InputError."""
    folder = Path(name).resolve()
    if not folder.parent.is_dir():
        raise OutputError(f"the folder of {name} does not exist; make it with: mkdir -p {folder.parent}")
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{name} is not a folder; name one for the report")
    if not os.access(folder if folder.exists() else folder.parent, os.W_OK | os.X_OK):
        raise OutputError(f"{name} is not writable; choose another folder for the report")
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("--report draws a picture with matplotlib; install it with: pip install 'matplotlib>=3.9'")
    return folder
