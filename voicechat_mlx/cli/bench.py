"""`voicechat bench`: how fast a model runs on this machine, as Markdown tables to paste."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from voicechat_mlx.cli import options
from voicechat_mlx.cli.common import BUNDLED_QUESTION, UsageError, progress_bar
from voicechat_mlx.cli.outputs import as_json, check_model_is_kept, check_outputs
from voicechat_mlx.cli.serve import require_packages
from voicechat_mlx.cli.streams import say

if TYPE_CHECKING:
    from voicechat_mlx.audio.wav import Samples
    from voicechat_mlx.benchmark import Benchmark
    from voicechat_mlx.model import VoiceChat

SHORTEST, LONGEST = 2.0, 600.0
"""Seconds. What is measured begins after a warm-up of about one."""


def add_command(commands: Any) -> None:
    """Register the command with argparse's sub-parsers."""
    parser = commands.add_parser("bench", help="measure speed and memory on this machine", description=__doc__)
    options.add_model_options(parser)
    parser.add_argument(
        "--seconds",
        type=options.number,
        default=10.0,
        metavar="S",
        help="how much speech to stream, a question over and over (default: 10)",
    )
    options.add_session_options(parser)
    parser.add_argument("--json", type=options.path, metavar="FILE", help="also write every figure of every frame")
    parser.add_argument(
        "--plot", type=options.path, metavar="FILE.png", help="also draw the stages of every frame (needs matplotlib)"
    )
    parser.add_argument(
        "--serve", action="store_true", help="also what the online service adds, over one connection to this machine"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Load, measure, write, print."""
    if not SHORTEST <= arguments.seconds <= LONGEST:
        raise UsageError(f"--seconds {arguments.seconds:g} is not a length from {SHORTEST:g} to {LONGEST:g}")
    outputs = {"--json": arguments.json, "--plot": arguments.plot}
    check_outputs(outputs)
    if arguments.plot:
        from voicechat_mlx.cli.plot import require_matplotlib

        require_matplotlib()
    check_model_is_kept(outputs, arguments.model)
    if arguments.serve:
        require_packages()

    from voicechat_mlx.benchmark import machine, precisions, run_benchmark
    from voicechat_mlx.checkpoint import name_of
    from voicechat_mlx.files import replacing

    begin = time.perf_counter()
    model = options.load_model(arguments)
    about = {
        "model": name_of(arguments.model),
        "precision": precisions(model),
        "load_seconds": time.perf_counter() - begin,
        "machine": machine(),
    }
    speech = speech_of(arguments.seconds)
    with progress_bar() as progress:
        found = run_benchmark(model, speech, arguments.prompt, arguments.seed, progress)
    if arguments.serve:
        about["online"] = online(model, found.frames)
    if arguments.json:
        with replacing(arguments.json) as place:
            place.write_text(as_json(about | asdict(found)), encoding="utf-8")
    if arguments.plot:
        from voicechat_mlx.cli.bench_plot import draw

        with replacing(arguments.plot) as place:
            draw(found, title_of(about), model.config.frame_duration, place)
    say("\n\n".join(tables(about, found)))


def speech_of(seconds: float) -> Samples:
    """The bundled question, repeated and cut to that length: float32 [n] at 16 kHz."""
    import numpy as np

    from voicechat_mlx.audio.wav import read_audio, sample_count

    question = read_audio(BUNDLED_QUESTION)
    return np.resize(question, sample_count(seconds))


def online(model: VoiceChat, frames: int) -> dict[str, float]:
    """The latency of a service of its own, on a free port of this machine, by name; see `Latency`."""
    from voicechat_mlx.server.latency import measure
    from voicechat_mlx.server.running import running
    from voicechat_mlx.server.service import Service

    with running(Service(load=lambda: model, model_name="bench")) as url:
        return asdict(measure(url, frames=frames))


def tables(about: dict[str, Any], found: Benchmark) -> list[str]:
    """One row for a table of machines; milliseconds by stage; everything else; the service, if it was measured."""
    service = [_online(about["online"])] if "online" in about else []
    return [_row(about, found), _stages(found), _facts(about, found), *service]


def title_of(about: dict[str, Any]) -> str:
    """`models/4bit (llm 4 bits, else float32) on AMD EPYC, 2 cores`."""
    return f"{about['model']} ({precision_in_words(about['precision'])}) on {about['machine']['device']}"


def precision_in_words(precision: dict[str, str]) -> str:
    """`float32`, or `perception bfloat16, llm 4 bits, else float32`."""
    common = precision["codec"]
    others = [f"{network} {kind}" for network, kind in precision.items() if kind != common]
    return ", ".join([*others, f"else {common}"]) if others else common


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]], *, numbers: bool) -> str:
    """Cells in columns of equal width: names to the left and, where the rest are `numbers`, those to the right."""
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    sides = ["<", *(">" if numbers else "<" for _ in header[1:])]
    rule = ["-" * (width - 1) + ":" if side == ">" else "-" * width for side, width in zip(sides, widths, strict=True)]
    return "\n".join(
        "| " + " | ".join(f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=True)) + " |"
        for line in (header, rule, *lines)
    )


def _row(about: dict[str, Any], found: Benchmark) -> str:
    from voicechat_mlx.memory import in_words

    cells = {
        "machine": about["machine"]["device"],
        "model": f"{about['model']}, {precision_in_words(about['precision'])}",
        "MLX": about["machine"]["MLX"],
        "ms per frame (p95)": f"{found.total.median:.1f} ({found.total.p95:.1f})",
        "real-time factor": f"{found.real_time_factor:.2f}",
        "first audio, ms": f"{found.first_audio_ms:.0f}",
        "offline, ms per frame": f"{found.offline_ms:.1f}",
        "peak": in_words(found.peak_bytes),
    }
    return markdown([*cells], [[*cells.values()]], numbers=False)


def _stages(found: Benchmark) -> str:
    from voicechat_mlx.benchmark import STAGES

    rows = {STAGES[stage]: timing for stage, timing in found.stages.items()} | {"**whole frame**": found.total}
    lines = [[name, f"{t.median:.1f}", f"{t.p95:.1f}", f"{t.slowest:.1f}"] for name, t in rows.items()]
    return markdown(["ms per 80 ms frame", "median", "p95", "slowest"], lines, numbers=True)


def _online(latency: dict[str, float]) -> str:
    names = {
        "connect_ms": "connecting, until the session is there",
        "first_audio_ms": "first audio, from the append that completes the first frame",
        "round_trip_ms": "a frame there and back",
        "round_trip_p95_ms": "a frame there and back, p95",
        "compute_ms": "of which the model",
        "overhead_ms": "of which the service and the network",
        "overhead_p95_ms": "of which the service and the network, p95",
    }
    lines = [[words, f"{latency[name]:.1f}"] for name, words in names.items()]
    return markdown(["online, over loopback", "ms"], lines, numbers=True)


def _facts(about: dict[str, Any], found: Benchmark) -> str:
    from voicechat_mlx.memory import in_words

    machine = about["machine"]
    facts = {
        "loading the model": f"{about['load_seconds']:.1f} s",
        "opening the first session": f"{found.first_session_ms:.0f} ms",
        "opening a later session": f"{found.prompt_ms:.0f} ms, with a system prompt of {found.prompt_tokens} tokens",
        "first audio": f"{found.first_audio_ms:.0f} ms after the first sample; two frames must be heard before it",
        "real-time factor": f"{found.real_time_factor:.2f}",
        "offline": f"{found.offline_ms:.1f} ms per frame",
        "weights": f"{in_words(found.weight_bytes)}: {precision_in_words(about['precision'])}",
        "most memory, MLX": in_words(found.peak_bytes),
        "most memory, process": in_words(found.resident_bytes),
        "machine": f"{machine['device']}, {machine['memory']}, {machine['system']}",
        "versions": ", ".join(f"{name} {machine[name]}" for name in ("voicechat", "MLX", "Python")),
    }
    facts |= {"BLAS": machine["BLAS"]} if "BLAS" in machine else {}
    return markdown([f"{found.frames} frames counted", ""], [*facts.items()], numbers=False)
