"""The entry point: finds the command, runs it, turns whatever happens into an exit code.

Commands import MLX inside their functions, so that `--help` is instant and wrong arguments are refused at once.
"""

from __future__ import annotations

import sys

try:
    from collections.abc import Sequence

    from voicechat_mlx import __version__
    from voicechat_mlx.cli import bench, convert, generate, inspect, serve, talk, trace, verify
    from voicechat_mlx.cli.common import DONE, Parser, UsageError, guarded, log_on_stderr
except KeyboardInterrupt:  # from here on `guarded` says so
    raise SystemExit("voicechat: interrupted") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; `argv` without the program name. Returns 0 done, 1 failed while running, 2 wrong input."""
    words = sys.argv[1:] if argv is None else list(argv)
    return guarded(lambda: _run(words), debug="--debug" in words)


def build_parser() -> Parser:
    """The parser with all its commands."""
    parser = Parser(prog="voicechat", description="Ask a NemotronLabs VoiceChat model: sound in, text and sound out.")
    parser.add_argument("--version", action="version", version=f"voicechat {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (generate, trace, inspect, convert, verify, bench, serve, talk):
        command.add_command(commands)
    return parser


def _run(words: list[str]) -> int:
    arguments, strangers = build_parser().parse_known_args(words)
    if strangers:
        raise UsageError(f"unknown argument {strangers[0]}; `voicechat {words[0]} --help` lists what there is")
    with log_on_stderr(debug=arguments.debug):
        arguments.run(arguments)
    return DONE


if __name__ == "__main__":
    sys.exit(main())
