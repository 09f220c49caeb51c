"""Judge a checkpoint by held-out recordings: transcripts, answers, tools, silence, interruptions, its voice, its speed.

Reads a checkpoint and the cases that `heldout` wrote. Prints a table and writes it as JSON. `--independent` also lets
pocketsphinx, where it is installed, pick what it hears from all answers.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray
from tokenizers import Tokenizer

from reference.training import content
from reference.training.answerers import Answerer, MlxAnswerer, Reply, open_checkpoint
from reference.training.heldout import Case, read_cases
from reference.training.recognise import edit_distance, error_rates
from reference.training.scoring import score, spoken
from reference.training.timelines import FRAME_OUT, SOUND_DELAY, Row
from reference.training.vocabularies import PAD, longest_pieces

TONE_SECONDS, TONE_HZ = 1.0, 440.0
Wave = NDArray[np.float32]


def played(answerer: Answerer, folder: Path, cases: list[Case]) -> list[Reply]:
    """Every case, with a line of progress now and then."""
    replies = []
    for number, case in enumerate(cases, start=1):
        wave, rate = soundfile.read(folder / case.file, dtype="float32")
        assert rate == 16000, f"{case.file} is at {rate} Hz"
        replies.append(answerer.reply(wave, case.prompt))
        if number % 20 == 0:
            print(f"evaluate: {number} of {len(cases)}", flush=True)
    return replies


def judge(cases: list[Case], replies: list[Reply], tokenizer: Tokenizer) -> dict[str, dict[str, float]]:
    """Kind of case → figures; transcripts over all cases that speak."""
    figures: dict[str, dict[str, float]] = {}
    for kind in dict.fromkeys(case.kind for case in cases):
        own = [index for index, case in enumerate(cases) if case.kind == kind]
        rows = [_row(cases[index], len(replies[index].text)) for index in own]
        text, function = _padded([replies[i].text for i in own]), _padded([replies[i].function for i in own])
        figures[kind] = score(rows, text, function, tokenizer)
    heard = [(case.transcript, reply.transcript) for case, reply in zip(cases, replies, strict=True) if case.transcript]
    figures["transcripts"] = error_rates(*zip(*heard, strict=True)) | {"cases": len(heard)}
    return figures


def _row(case: Case, frames: int) -> Row:
    """A row without labels, for scoring."""
    empty = np.full(frames, PAD, np.int16)
    return Row([], empty, empty, np.zeros(frames, bool), turns=list(case.turns))


def _padded(ids: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    longest = max(map(len, ids))
    return np.stack([np.pad(row, (0, longest - len(row)), constant_values=PAD) for row in ids])


def answers_heard(cases: list[Case], replies: list[Reply], tokenizer: Tokenizer) -> list[tuple[str, Wave]]:
    """Single questions: (what was said, its sound at 16 kHz)."""
    found = []
    for case, reply in zip(cases, replies, strict=True):
        for said in spoken(reply.text, tokenizer) if case.kind == "one question" else ():
            first = (said.begin + SOUND_DELAY) * FRAME_OUT
            last = (said.end or len(reply.text)) * FRAME_OUT
            found.append((said.text, soxr.resample(reply.audio[first:last], 22050, 16000)))
    return found


def judge_voice(answerer: Answerer, heard: list[tuple[str, Wave]], vocabulary: list[str]) -> dict[str, float]:
    """The answers played back to the model's own ears."""
    true = [content.transcript(text) for text, _ in heard]
    own = [answerer.reply(np.pad(wave, (3200, 4800)), "", extra_seconds=0.5).transcript for _, wave in heard]
    errors, total = 0, 0
    for a, b in zip(true, own, strict=True):
        left, right = (longest_pieces(side, vocabulary) for side in (a, b))
        errors, total = errors + edit_distance(left, right), total + len(left)
    rates = error_rates(true, own)
    return {
        "answers": len(heard),
        "sentences exact": rates["exact"],
        "word error": rates["word_error"],
        "piece error": round(100 * errors / max(total, 1), 2),
    }


def judge_loudness(cases: list[Case], replies: list[Reply], tokenizer: Tokenizer) -> dict[str, float]:
    """RMS by frame, while it speaks (median of the quietest answer) and while it does not (the largest)."""
    speaking, silent = [], []
    for case, reply in zip(cases, replies, strict=True):
        if case.kind == "interruption":
            continue
        rms = np.sqrt(np.square(reply.audio.reshape(-1, FRAME_OUT)).mean(1))
        quiet = np.ones(len(rms), bool)
        for said in spoken(reply.text, tokenizer):
            end = len(rms) if said.end is None else said.end
            quiet[said.begin + SOUND_DELAY : end + 1] = False
            speaking.append(float(np.sqrt(np.square(rms[said.begin + SOUND_DELAY : end]).mean())))
        silent.append(float(rms[quiet].max(initial=0.0)))
    return {
        "quietest answer": round(min(speaking, default=0.0), 5),
        "loudest silence": round(max(silent, default=0.0), 6),
        "silence, 99th percentile": round(float(np.percentile(silent, 99)), 6),
    }


def judge_codec(answerer: Answerer) -> dict[str, float]:
    """440 Hz for a second at three amplitudes, and decoded silence."""
    samples = int(22050 * TONE_SECONDS) // FRAME_OUT * FRAME_OUT
    time = np.arange(samples) / 22050
    figures = {}
    for amplitude in (0.1, 0.5, 0.9):
        tone = (amplitude * np.sin(2 * np.pi * TONE_HZ * time)).astype(np.float32)
        made = answerer.through_codec(tone)
        error = np.square(made - tone[: len(made)]).sum()
        figures[f"440 Hz at {amplitude}, dB"] = round(
            float(10 * np.log10(np.square(tone[: len(made)]).sum() / error)), 2
        )
    figures["silence rms"] = round(float(np.sqrt(np.square(answerer.silence(50)).mean())), 8)
    return figures


def judge_independently(heard: list[tuple[str, Wave]]) -> dict[str, float]:
    """pocketsphinx picks from all full answers."""
    from reference.training.independent import AnswerPicker

    picker = AnswerPicker([question.answers["full"] for question in content.questions()])
    known = [(content.transcript(text), wave) for text, wave in heard if content.transcript(text) in picker.answers]
    right = sum(picker.pick(wave) == text for text, wave in known)
    return {
        "picked right": round(100 * right / max(len(known), 1), 2),
        "answers": len(known),
        "of": len(picker.answers),
    }


def same_text(folder: Path, cases: list[Case], cases_folder: Path, replies: list[Reply]) -> dict[str, float]:
    """How often another checkpoint (the quantised one) says the same to single questions."""
    own = [(case, reply) for case, reply in zip(cases, replies, strict=True) if case.kind == "one question"]
    others = played(MlxAnswerer(folder), cases_folder, [case for case, _ in own])
    same = [np.array_equal(a.text[a.text != PAD], b.text[b.text != PAD]) for (_, a), b in zip(own, others, strict=True)]
    return {"same text": round(100 * float(np.mean(same)), 2), "cases": len(same)}


def judge_speed(answerer: Answerer, replies: list[Reply], wave: Wave) -> dict[str, float]:
    """Seconds of work to a second of sound, and the time to load."""
    sound = sum(len(reply.text) * 0.08 for reply in replies)
    figures = {
        "load, s": round(answerer.load_seconds, 2),
        "generate, real-time factor": round(sum(reply.seconds for reply in replies) / sound, 3),
    }
    if isinstance(answerer, MlxAnswerer):
        figures["streaming, real-time factor"] = round(answerer.streaming_factor(wave), 3)
    return figures


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m reference.training.evaluate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--cases", type=Path, required=True, help="folder that heldout wrote")
    parser.add_argument("--backend", choices=("mlx", "torch"), default="mlx")
    parser.add_argument("--limit", type=int, default=0, help="only so many cases of each kind")
    parser.add_argument("--quantised", type=Path, help="another checkpoint that should answer alike")
    parser.add_argument("--independent", action="store_true", help="also pocketsphinx")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    by_kind: dict[str, list[Case]] = defaultdict(list)
    for case in read_cases(arguments.cases):
        by_kind[case.kind].append(case)
    cases = [case for listed in by_kind.values() for case in listed[: arguments.limit or None]]
    answerer = open_checkpoint(arguments.checkpoint, arguments.backend)
    tokenizer = Tokenizer.from_file(str(arguments.checkpoint / "tokenizer.json"))
    replies = played(answerer, arguments.cases, cases)
    heard = answers_heard(cases, replies, tokenizer)
    figures: dict[str, Any] = judge(cases, replies, tokenizer)
    pieces = json.loads((arguments.checkpoint / "config.json").read_text())["rnnt_vocabulary"]
    figures["voice, by its own ears"] = judge_voice(answerer, heard, pieces)
    figures["loudness"] = judge_loudness(cases, replies, tokenizer)
    figures["codec"] = judge_codec(answerer)
    figures["speed"] = judge_speed(answerer, replies, np.zeros(16000 * 4, np.float32))
    if arguments.independent:
        figures["voice, by pocketsphinx"] = judge_independently(heard)
    if arguments.quantised:
        figures["quantised"] = same_text(arguments.quantised, cases, arguments.cases, replies)
    for name, values in figures.items():
        print(f"{name}: " + "  ".join(f"{figure} {value}" for figure, value in values.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
