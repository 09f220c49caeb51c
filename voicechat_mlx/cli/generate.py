"""`voicechat generate`: a recording in, transcript, text and a spoken answer out."""

from __future__ import annotations

import argparse
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from voicechat_mlx.cli import options
from voicechat_mlx.cli.common import progress_bar
from voicechat_mlx.cli.outputs import as_json, check_model_is_kept, check_outputs
from voicechat_mlx.cli.streams import say
from voicechat_mlx.errors import VoiceChatError

if TYPE_CHECKING:
    from voicechat_mlx.offline import VoiceChatResult


def add_command(commands: Any) -> None:
    """Register the command with argparse's sub-parsers."""
    parser = commands.add_parser("generate", help="answer a recording", description=__doc__)
    options.add_model_options(parser)
    options.add_question_options(parser)
    parser.add_argument(
        "--output-audio",
        type=options.path,
        required=True,
        metavar="OUT.wav",
        help="the answer: mono 16-bit WAV, whose name ends in .wav",
    )
    parser.add_argument("--json", type=options.path, metavar="FILE", help="also write texts, ids, codes and timings")
    parser.add_argument(
        "--plot", type=options.path, metavar="FILE.png", help="also draw the timeline, a PNG (needs matplotlib)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Everything that can be refused is refused before the model is loaded."""
    outputs = {"--output-audio": arguments.output_audio, "--json": arguments.json, "--plot": arguments.plot}
    check_outputs(outputs, arguments.audio)
    if arguments.plot:
        from voicechat_mlx.cli.plot import require_matplotlib

        require_matplotlib()
    question = options.load_question(arguments)
    check_model_is_kept(outputs, arguments.model)
    model = options.load_model(arguments)

    import voicechat_mlx
    from voicechat_mlx.audio.wav import write_wav
    from voicechat_mlx.files import replacing

    with progress_bar() as progress:
        started = time.perf_counter()
        result = voicechat_mlx.generate(model, question, progress=progress, **options.generation_options(arguments))
        elapsed = time.perf_counter() - started
    try:
        _require_finite(result)
        write_wav(arguments.output_audio, result.audio, result.sample_rate)
        if arguments.json:
            with replacing(arguments.json) as place:
                place.write_text(_result_as_json(result, elapsed), encoding="utf-8")
        if arguments.plot:
            from voicechat_mlx.cli.plot import draw
            from voicechat_mlx.cli.timeline import timeline_of

            with replacing(arguments.plot) as place:
                draw(timeline_of(model, question, result), place)
    except BaseException:  # the texts are shown in any case, but what went wrong first is what is told
        with suppress(OSError, VoiceChatError):
            _show(result)
        raise
    _show(result)  # last, so that a reader who stops listening loses no file


def _show(result: VoiceChatResult) -> None:
    say(f"[user] {result.user_transcript}")
    say(result.text)
    if result.function_text:
        say(f"[function] {result.function_text}")


def _require_finite(result: VoiceChatResult) -> None:
    import numpy as np

    bad = np.flatnonzero(~np.isfinite(result.audio))
    if bad.size:
        raise VoiceChatError(
            f"sample {bad[0]} of the answer is {result.audio[bad[0]]}, so it was not written; "
            f"`voicechat inspect` names damaged tensors, and --dtype float32 avoids overflow"
        )


def _result_as_json(result: VoiceChatResult, elapsed: float) -> str:
    """The real-time factor is computing time over sounding time, below 1 is faster than speech."""
    values = {
        "text": result.text,
        "function_text": result.function_text,
        "user_transcript": result.user_transcript,
        "text_tokens": result.text_tokens.tolist(),
        "function_tokens": result.function_tokens.tolist(),
        "audio_codes": result.audio_codes.tolist(),
        "frames": result.frames,
        "sample_rate": result.sample_rate,
        "seconds": {stage: round(seconds, 6) for stage, seconds in result.seconds.items()},
        "real_time_factor": round(elapsed * result.sample_rate / len(result.audio), 6),
    }
    return as_json(values)
