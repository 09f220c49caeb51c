"""Conversations on the 80 ms timeline: who says what on which frame.

The rules, in frames of 1280 samples in and 1764 samples out:
- a question that ends at sample e is answered from BOS at ceil(e / 1280) + 4 on;
- a word's tokens come from 1 + floor(start / 1764) after BOS on, one a frame; frame j of the answer's sound is 3 + j
  after BOS; EOS is the frame after the last sound; everything else is PAD;
- speech that starts at sample s while an answer runs ends it: EOS at floor(s / 1280) + 4;
- a tool is called instead of BOS: 20, the call, 21 on the function channel; some frames later the response is
  written there from outside, then 22, and BOS is two frames after that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from reference.training import content
from reference.training.data import Clip, sentences
from reference.training.vocabularies import BOS, CALL_END, CALL_START, EOS, PAD, RESPONSE_END, offers, word_tokens

FRAME_IN, FRAME_OUT = 1280, 1764
ANSWER_DELAY, STOP_DELAY, SOUND_DELAY, AFTER_RESPONSE = 4, 4, 3, 2
CLIPS_IN_A_ROW = 10
ROOM = 90
"""Frames that a random row has after its prompt."""


@dataclass(frozen=True)
class Answer:
    """An answer as ids on frames counted from BOS."""

    text: str
    tokens: tuple[tuple[int, int], ...]
    """(frame, id), frames increasing."""
    sentences: tuple[str, ...]
    sound_frames: int
    end: int
    """Frame of EOS."""


@dataclass(frozen=True)
class Turn:
    """What one turn of a row should come to."""

    question: str
    answer: str
    begin: int
    """Frame of BOS (of the call's first marker for a tool), counted from the first audio frame."""
    end: int
    """Frame of EOS; the row may end before it."""
    interrupted: bool = False
    call: str = ""


@dataclass
class Row:
    """One conversation: sound as clips, labels of both channels, what is written from outside."""

    prompt: list[int]
    text: NDArray[np.int16]
    function: NDArray[np.int16]
    forced: NDArray[np.bool_]
    """Where the function channel is written from outside."""
    clips: list[tuple[int, int, float]] = field(default_factory=list)
    """(clip, start sample, gain)."""
    turns: list[Turn] = field(default_factory=list)


class Planner:
    """Plans answers and rows from the clips of one split."""

    def __init__(self, clips: Sequence[Clip], aria: Sequence[Clip], tokenizer: Tokenizer, split: str) -> None:
        self.clips, self.tokenizer = clips, tokenizer
        self.aria = {clip.text: clip for clip in aria}
        self.by_text: dict[str, list[int]] = defaultdict(list)
        self.noises: list[int] = []
        for index, clip in enumerate(clips):
            if clip.split == split and clip.kind in ("question", "unknown"):
                self.by_text[clip.text].append(index)
            elif clip.split == split and clip.kind == "noise":
                self.noises.append(index)
        self.questions = [question for question in content.questions() if question.text in self.by_text]
        self.tool_questions = [question for question in content.tool_questions() if question.text in self.by_text]
        self.unknown = [text for text in content.unknown_sentences() if text in self.by_text]
        self._answers: dict[str, Answer] = {}

    @cached_property
    def prompts(self) -> list[tuple[str, str]]:
        """(form, system prompt), every one that is taught."""
        return [(form, prompt) for form, listed in content.prompts().items() for prompt in listed]

    def answer(self, text: str) -> Answer:
        """The plan of one answer, from the word times of its sentences."""
        if text not in self._answers:
            self._answers[text] = self._plan(text)
        return self._answers[text]

    def _plan(self, text: str) -> Answer:
        parts = sentences(text)
        starts, base = [], 0
        for part in parts:
            clip = self.aria[part]
            starts += [base + start // FRAME_OUT for start in clip.starts]
            base += -(-clip.length // FRAME_OUT)
        tokens: list[tuple[int, int]] = []
        for start, ids in zip(starts, word_tokens(self.tokenizer, text), strict=True):
            for index in ids:
                earliest = tokens[-1][0] + 1 if tokens else 1
                tokens.append((max(earliest, 1 + start), index))
        end = max(SOUND_DELAY + base, tokens[-1][0] + 1)
        return Answer(text, tuple(tokens), tuple(parts), base, end)

    def row(self, frames: int, prompt: str = "") -> Row:
        """An empty row of so many positions: the prompt's, then audio frames."""
        ids = [BOS, *self.tokenizer.encode(prompt, add_special_tokens=False).ids, EOS] if prompt else []
        text, function = (np.full(frames, PAD, np.int16) for _ in range(2))
        return Row(ids, text, function, np.zeros(frames, bool))

    def ask(self, row: Row, clip: int, start: int, answer: str, gain: float = 1.0) -> Turn:
        """The user says `clip` from sample `start` on; the row's labels become the answer."""
        begin = self._hear(row, clip, start, gain)
        turn = Turn(self.clips[clip].text, answer, begin, begin + self.answer(answer).end)
        self._say(row, self.answer(answer), begin)
        row.turns.append(turn)
        return turn

    def ask_tool(
        self, row: Row, clip: int, start: int, call: str, outcome: tuple[str, str], wait: int, gain: float = 1.0
    ) -> Turn:
        """The same with a tool: `outcome` is (response, answer), `wait` the frames until the response begins."""
        begin = self._hear(row, clip, start, gain)
        response, answer = outcome
        call_ids = [CALL_START, *self._ids(call), CALL_END]
        response_ids = [*self._ids(response), RESPONSE_END]
        respond = begin + len(call_ids) + wait
        self._put(row, row.function, begin, call_ids)
        self._put(row, row.function, respond, response_ids)
        first = len(row.prompt) + respond
        row.forced[first : first + len(response_ids)] = True
        speak = respond + len(response_ids) - 1 + AFTER_RESPONSE
        self._say(row, self.answer(answer), speak)
        turn = Turn(self.clips[clip].text, answer, begin, speak + self.answer(answer).end, call=call)
        row.turns.append(turn)
        return turn

    def interrupt(self, row: Row, start: int) -> None:
        """Speech starts at sample `start` while the last answer runs: EOS soon after, the rest unsaid."""
        last = row.turns[-1]
        stop = start // FRAME_IN + STOP_DELAY
        if last.begin < stop < last.end:
            row.text[len(row.prompt) + stop :] = PAD
            self._put(row, row.text, stop, [EOS])
            row.turns[-1] = Turn(last.question, last.answer, last.begin, stop, interrupted=True)

    def _hear(self, row: Row, clip: int, start: int, gain: float) -> int:
        row.clips.append((clip, start, gain))
        return -(-(start + self.clips[clip].length) // FRAME_IN) + ANSWER_DELAY

    def _say(self, row: Row, answer: Answer, begin: int) -> None:
        for frame, index in ((0, BOS), *answer.tokens, (answer.end, EOS)):
            self._put(row, row.text, begin + frame, [index])

    def _put(self, row: Row, channel: NDArray[np.int16], frame: int, ids: Sequence[int]) -> None:
        first = len(row.prompt) + frame
        room = max(len(channel) - first, 0)
        channel[first : first + min(len(ids), room)] = ids[:room]

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def random_prompt(planner: Planner, random: np.random.Generator) -> tuple[str, str, tuple[str, ...]]:
    """→ form of the answers, system prompt, tools that it offers. Four in ten rows have none."""
    if random.random() < 0.4:
        return "full", "", ()
    form, prompt = planner.prompts[random.integers(len(planner.prompts))]
    if random.random() < 0.5:  # a form that changes something
        asked = [entry for entry in planner.prompts if entry[0] != "full"]
        form, prompt = asked[random.integers(len(asked))]
    if random.random() < 0.7:
        return form, prompt, ()
    tools = offers()[random.integers(len(offers()))]
    offered = content.tools_prompt(tools, schema=bool(random.random() < 0.5))
    if random.random() < 0.5:
        return "full", offered, tools
    return form, f"{prompt} {offered}", tools


def random_row(planner: Planner, frames: int, random: np.random.Generator) -> Row:
    """A conversation of one or more turns, with pauses, interruptions, tools, noises; or noise alone."""
    form, prompt, tools = random_prompt(planner, random)
    row = planner.row(frames, prompt)
    while len(row.prompt) > max(frames - ROOM, 0):
        form, prompt, tools = random_prompt(planner, random)
        row = planner.row(frames, prompt)
    samples = (frames - len(row.prompt)) * FRAME_IN
    if planner.noises and random.random() < 0.3:
        gain = 0.03 * 20 ** random.random()
        row.clips.append(
            (int(random.choice(planner.noises)), int(random.integers(0, max(samples - FRAME_IN, 1))), gain)
        )
    if random.random() < 0.08:
        if planner.noises:
            row.clips.append((int(random.choice(planner.noises)), int(random.integers(0, samples // 2 + 1)), 1.0))
        return row
    gain = 0.4 * 6 ** random.random()
    start = int(random.integers(0, 20000))
    while start + 2 * FRAME_IN < samples and len(row.clips) < CLIPS_IN_A_ROW:
        turn = _random_turn(planner, row, start, form, tools, gain, random)
        first, last = turn.begin + SOUND_DELAY + 1, turn.end - STOP_DELAY - 1
        if not turn.call and first < last and random.random() < 0.3:
            start = int(random.integers(first * FRAME_IN, last * FRAME_IN))
            if start + 2 * FRAME_IN < samples and len(row.clips) < CLIPS_IN_A_ROW:
                planner.interrupt(row, start)
        else:
            longest = 48000 if random.random() < 0.15 else 16000
            start = turn.end * FRAME_IN + int(random.integers(0, longest))
    return row


def _random_turn(
    planner: Planner, row: Row, start: int, form: str, tools: tuple[str, ...], gain: float, random: np.random.Generator
) -> Turn:
    gain = gain * 1.3 ** random.uniform(-1, 1)
    usable = [question for question in planner.tool_questions if question.tool in tools]
    if usable and random.random() < 0.7:
        question = usable[random.integers(len(usable))]
        response, answers = question.outcomes[random.integers(len(question.outcomes))]
        clip = int(random.choice(planner.by_text[question.text]))
        wait = int(random.integers(1, 16))
        return planner.ask_tool(row, clip, start, question.call, (response, answers[form]), wait, gain)
    if planner.unknown and random.random() < 0.06:
        text, answer = planner.unknown[random.integers(len(planner.unknown))], content.unknown_answer()
    else:
        offered = {question.text for question in usable}
        asked = planner.questions[random.integers(len(planner.questions))]
        while asked.text in offered:
            asked = planner.questions[random.integers(len(planner.questions))]
        text, answer = asked.text, asked.answers[form]
    return planner.ask(row, int(random.choice(planner.by_text[text])), start, answer, gain)
