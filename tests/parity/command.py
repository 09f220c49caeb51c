"""The command that users run, as they run it, against the twin's loop: the WAV, the ids, the codes and the texts."""

from __future__ import annotations

import json
import subprocess
import sys
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from reference.perception.rnnt import decode_pieces
from tests.parity.pair import Pair, load_pair
from tests.parity.tolerances import PCM_STEPS
from tests.parity.whole_loop import PROMPT, QUESTION, ROOT, Run, twin_loop
from voicechat_mlx.checkpoint import BUNDLED
from voicechat_mlx.report.rows import Row, compare_ids, compare_pcm

ASKED = Run(prompt=PROMPT, extra_seconds=3.0)


def compare_command(folder: Path) -> Iterator[Row]:
    """Answer the bundled question with the bundled model in a process of its own, and compare what it wrote.

    `folder` takes the files. Raises RuntimeError with the command's own words when it fails.
    """
    sound, answer = run_command(folder)
    pair = load_pair(BUNDLED)
    loop = twin_loop(pair, ASKED)
    yield from compare_sound(pair, sound, loop)
    yield compare_ids("text_tokens", np.array(answer["text_tokens"]), loop["text.ids"])
    yield compare_ids("function_tokens", np.array(answer["function_tokens"]), loop["function.ids"])
    yield compare_ids("audio_codes", np.array(answer["audio_codes"]), loop["tts.codes"])
    for key, text in texts(pair, loop).items():
        yield compare_ids(f"{key}, by character", code_points(answer[key]), code_points(text))


def run_command(folder: Path) -> tuple[Path, dict[str, Any]]:
    """→ the WAV's path and the parsed JSON."""
    sound, answer = folder / "answer.wav", folder / "answer.json"
    outputs = ["--output-audio", str(sound), "--json", str(answer)]
    options = ["-p", ASKED.prompt, "--seed", str(ASKED.seed), "--dtype", "float32", "--conventions", ASKED.conventions]
    options += ["--extra-decoding-seconds", str(ASKED.extra_seconds)]
    command = [sys.executable, "-m", "voicechat_mlx.cli", "generate", "--audio", str(QUESTION), *outputs, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"`voicechat generate` ended with exit code {done.returncode}: {done.stderr.strip()}")
    return sound, json.loads(answer.read_text(encoding="utf-8"))


def compare_sound(pair: Pair, path: Path, loop: dict[str, Tensor]) -> Iterator[Row]:
    """Header and samples of the WAV."""
    with wave.open(str(path)) as file:
        header = [file.getframerate(), file.getnchannels(), 8 * file.getsampwidth()]
        samples: NDArray[np.int16] = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    yield compare_ids(
        "WAV: rate, channels, bits", np.array(header), np.array([pair.twin.config.output_sample_rate, 1, 16])
    )
    yield compare_pcm("WAV: samples", samples, loop["codec.audio"], PCM_STEPS)


def texts(pair: Pair, loop: dict[str, Tensor]) -> dict[str, str]:
    """What the twin's ids say, by the JSON's keys."""
    config, tokenizer = pair.twin.config, Tokenizer.from_file(str(pair.folder / "tokenizer.json"))
    silent = {config.pad_token_id, config.silence_token_id, config.bos_token_id, config.eos_token_id}
    said = {
        key: tokenizer.decode([id for id in loop[name].tolist() if id not in silent], skip_special_tokens=False)
        for key, name in (("text", "text.ids"), ("function_text", "function.ids"))
    }
    return said | {"user_transcript": decode_pieces(loop["rnnt.ids"].tolist(), config.rnnt_vocabulary or ())}


def code_points(text: str) -> NDArray[np.uint32]:
    """One number for each character."""
    return np.frombuffer(text.encode("utf-32-le"), "<u4")
