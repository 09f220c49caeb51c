"""Make the speech: every question in many voices, every answer in one, unknown sentences and noises.

Writes WORK/data: user.npy and aria.npy (16-bit samples of all clips, one after another, at 16 and 22.05 kHz),
clips.json (what each clip is, where it lies, when its words start), tokenizer.json and pieces.json. Three voices,
one in five of the second phrasings of capitals, and one in eight noises are held out: their clips are of the split
"test".
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.training import content
from reference.training.noises import make_noise
from reference.training.options import settings_of, step_parser
from reference.training.speech import SAMPLE_RATE, Job, Spoken, Voice, speak_all
from reference.training.vocabularies import Pieces, text_tokenizer

USER_RATE = 16000
ACCENTS = ("en", "en-us", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-029", "en-us-nyc")
VARIANTS = ("", "m1", "m2", "m3", "m4", "m6", "m7", "f1", "linda", "aunty", "Annie", "Andrea", "edward", "paul", "max")
TEST_VARIANTS = ("m5", "f4", "m8")
ARIA = Voice("en-us", speed=190, pitch=70, pitch_range=30)
"""The voice that stands for Aria."""


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """How much speech to make."""

    questions: int
    """How many questions to use, spread over all of them; 0 for all."""
    renders: int
    """Training clips of each question."""
    test_renders: int
    unknown: int
    """How many unknown sentences to use; 0 for all."""
    unknown_renders: int
    answer_renders: int
    """Training clips of each answer in users' voices: the recogniser hears whole sentences, too."""
    noises: int
    vocab_size: int
    pieces: int


@dataclass(frozen=True, kw_only=True)
class Clip:
    """One clip: its text, what it is (question, unknown, answer, aria, noise), who speaks, train or test."""

    text: str
    kind: str
    voice: str
    split: str
    offset: int = 0
    length: int = 0
    starts: tuple[int, ...] = ()
    """First sample of each word, from the clip's beginning."""


def chosen(items: Sequence[Any], count: int) -> list[Any]:
    """`count` of the items, evenly spread from the first to the last; all of them for 0."""
    if not count or count >= len(items):
        return list(items)
    return [items[index * (len(items) - 1) // (count - 1)] for index in range(count)]


def sentences(text: str) -> list[str]:
    """An answer → its sentences, which are spoken, coded and aligned one by one."""
    return re.findall(r"\S[^.!?]*[.!?]", text)


def is_new_combination(index: int, text: str) -> bool:
    """Whether a question's phrasing is kept for testing: one in five second phrasings of capitals."""
    return text.startswith("Tell me the capital") and index % 10 == 1


def user_jobs(settings: DataSettings, seed: int) -> Iterator[tuple[Clip, Job]]:
    """Everything that users say, train and test."""
    random = np.random.default_rng(seed)
    asked = chosen(content.questions(), settings.questions)
    for index, question in enumerate(asked):
        renders = 0 if is_new_combination(index, question.text) else settings.renders
        yield from _renders(question.text, "question", renders, settings.test_renders, random)
    for index, text in enumerate(chosen(content.unknown_sentences(), settings.unknown)):
        renders = 0 if index % 10 == 9 else settings.unknown_renders
        yield from _renders(text, "unknown", renders, settings.test_renders if not renders else 0, random)
    for text in spoken_sentences(settings):
        yield from _renders(text, "answer", settings.answer_renders, 0, random)
        yield Clip(text=text, kind="aria", voice="aria", split="train"), Job(text, ARIA, USER_RATE)


def _renders(text: str, kind: str, train: int, test: int, random: np.random.Generator) -> Iterator[tuple[Clip, Job]]:
    for number in range(train + test):
        split = "train" if number < train else "test"
        variant = str(random.choice(VARIANTS if split == "train" else TEST_VARIANTS))
        name = str(random.choice(ACCENTS)) + (f"+{variant}" if variant else "")
        speeds = (130, 210) if split == "train" else (125, 215)
        speed, pitch, pitch_range = (int(random.integers(*limits)) for limits in (speeds, (20, 81), (30, 71)))
        yield (
            Clip(text=text, kind=kind, voice=name, split=split),
            Job(text, Voice(name, speed, pitch, pitch_range), USER_RATE),
        )


def spoken_sentences(settings: DataSettings) -> list[str]:
    """Every sentence of every answer to the questions in use."""
    if not settings.questions:
        answers = content.answer_texts()
    else:
        asked = {question.text for question in chosen(content.questions(), settings.questions)}
        forms = [question.answers for question in content.questions() if question.text in asked]
        forms += [form for tool in content.tool_questions() if tool.text in asked for _, form in tool.outcomes]
        answers = [answer for form in forms for answer in form.values()] + [content.unknown_answer()]
    return list(dict.fromkeys(sentence for answer in answers for sentence in sentences(answer)))


def write_clips(path: Path, clips: Sequence[tuple[Clip, Spoken]]) -> list[dict[str, Any]]:
    """All samples into one file, a record of each clip into a list."""
    lengths = [len(spoken.samples) for _, spoken in clips]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    np.save(path, np.concatenate([spoken.samples for _, spoken in clips]))
    return [
        vars(clip) | {"offset": int(offset), "length": length, "starts": spoken.word_starts}
        for (clip, spoken), offset, length in zip(clips, offsets, lengths, strict=False)
    ]


def make(settings: DataSettings, folder: Path, seed: int, workers: int) -> None:
    """Everything into `folder`; a marker file at the end says that it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    wanted = list(user_jobs(settings, seed))
    clips, jobs = [clip for clip, _ in wanted], [job for _, job in wanted]
    print(f"data: {len(jobs)} clips in users' voices …", flush=True)
    user = list(zip(clips, speak_all(jobs, seed, workers), strict=True))
    user += [noise_clip(index, seed) for index in range(settings.noises)]
    texts = spoken_sentences(settings)
    print(f"data: {len(texts)} sentences in Aria's voice … {time.monotonic() - began:.0f} s", flush=True)
    spoken = speak_all([Job(text, ARIA, SAMPLE_RATE) for text in texts], seed + 10**6, workers)
    aria = [
        (Clip(text=text, kind="answer", voice="aria", split="train"), clip)
        for text, clip in zip(texts, spoken, strict=True)
    ]
    records = {
        "user": write_clips(folder / "user.npy", user),
        "aria": write_clips(folder / "aria.npy", aria),
        "seed": seed,
    }
    text_tokenizer(settings.vocab_size).save(str(folder / "tokenizer.json"))
    pieces = Pieces(settings.pieces)
    (folder / "pieces.json").write_text(json.dumps({"vocabulary": pieces.vocabulary, "merges": pieces.merges}))
    (folder / "clips.json").write_text(json.dumps(records))
    minutes = sum(len(spoken.samples) for _, spoken in user) / USER_RATE / 60
    own_minutes = sum(len(spoken.samples) for _, spoken in aria) / SAMPLE_RATE / 60
    seconds = time.monotonic() - began
    print(f"data: {minutes:.0f} min of users, {own_minutes:.1f} min of Aria, {seconds:.0f} s", flush=True)


def noise_clip(index: int, seed: int) -> tuple[Clip, Spoken]:
    """One noise; one in eight of each kind is for testing."""
    split = "test" if index // 8 % 8 == 7 else "train"
    return Clip(text="", kind="noise", voice="noise", split=split), Spoken(make_noise(index, USER_RATE, seed), ())


def read_clips(folder: Path) -> tuple[list[Clip], NDArray[np.int16], list[Clip], NDArray[np.int16]]:
    """WORK/data → users' clips and samples, Aria's clips and samples."""
    records = json.loads((folder / "clips.json").read_text())
    user, aria = (
        [Clip(**record | {"starts": tuple(record["starts"])}) for record in records[name]] for name in ("user", "aria")
    )
    return user, np.load(folder / "user.npy", mmap_mode="r"), aria, np.load(folder / "aria.npy", mmap_mode="r")


def main() -> None:
    """The command."""
    parser = step_parser("data", __doc__)
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), help="processes; the result does not depend on it"
    )
    arguments = parser.parse_args()
    folder = arguments.work / "data"
    if (folder / "clips.json").is_file():
        print(f"data: {folder} is complete")
        return
    make(settings_of(arguments, "data", DataSettings), folder, arguments.seed, arguments.workers)


if __name__ == "__main__":
    main()
