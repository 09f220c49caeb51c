"""The two vocabularies: a byte-level BPE for text, and pieces for the transcript, learnt from the content.

Unusual: one small learner serves both and breaks ties by the alphabet, so the same content gives the same vocabulary on
every machine. Text ids 0 … 23 are special (1 BOS, 2 EOS, 12 PAD; 20, 21, 22 mark function calls), 24 … 279 the 256
single characters, the rest merges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from reference.training import content

SPECIAL_TOKENS = ("<unk>", "<s>", "</s>", *(f"<SPECIAL_{number}>" for number in range(3, 24)))
BOS, EOS, PAD = 1, 2, 12
CALL_START, CALL_END, RESPONSE_END = 20, 21, 22
LONGEST_TOKEN = 14
WORD_START = "▁"
Merge = tuple[str, str]


def learn_merges(words: Counter[str], count: int) -> list[Merge]:
    """The `count` most frequent joins, one after another; of equally frequent ones the first in the alphabet."""
    spelled = {word: tuple(word) for word in sorted(words)}
    merges: list[Merge] = []
    while len(merges) < count:
        pairs: Counter[Merge] = Counter()
        for word, parts in spelled.items():
            for pair in pairwise(parts):
                if len(pair[0] + pair[1]) <= LONGEST_TOKEN:
                    pairs[pair] += words[word]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        spelled = {word: join(parts, best) for word, parts in spelled.items()}
    return merges


def join(parts: Sequence[str], pair: Merge) -> tuple[str, ...]:
    """`parts` with every occurrence of the pair joined, from left to right."""
    joined: list[str] = []
    for part in parts:
        if joined and (joined[-1], part) == pair:
            joined[-1] += part
        else:
            joined.append(part)
    return tuple(joined)


def text_tokenizer(vocab_size: int) -> Tokenizer:
    """The tokenizer of answers, prompts and calls, as a published tokenizer.json holds it."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words: Counter[str] = Counter()
    for text, weight in _text_corpus():
        for word, _ in level.pre_tokenize_str(text):
            words[word] += weight
    tokens = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = learn_merges(words, vocab_size - len(tokens))
    tokens += [left + right for left, right in merges]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    assert len(vocabulary) == vocab_size, "two merges spell the same token"
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = level
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def _text_corpus() -> Iterable[tuple[str, int]]:
    """(text, weight): answers are spoken one token a frame, calls delay the answer, so both should be short."""
    yield from ((answer, 1) for answer in content.answer_texts())
    yield from ((prompt, 4) for listed in content.prompts().values() for prompt in listed)
    yield from ((content.tools_prompt(names, schema=schema), 12) for names in offers() for schema in (False, True))
    for question in content.tool_questions():
        yield question.call, 3
        yield from ((response, 1) for response, _ in question.outcomes)


def offers() -> list[tuple[str, ...]]:
    """The sets of tools that a prompt may offer."""
    return [("get_time",), ("get_weather",), ("get_time", "get_weather")]


def word_tokens(tokenizer: Tokenizer, text: str) -> list[list[int]]:
    """The ids of each word of a text; joined they are the ids of the whole text."""
    first, *others = text.split(" ")
    ids = [tokenizer.encode(word, add_special_tokens=False).ids for word in (first, *(f" {other}" for other in others))]
    assert [index for word in ids for index in word] == tokenizer.encode(text, add_special_tokens=False).ids
    return ids


class Pieces:
    """RNNT pieces: `<unk>`, the single characters, then merges; a word begins with `▁`."""

    def __init__(self, size: int, merges: Sequence[Merge] | None = None) -> None:
        """Learns the merges from the content unless they are given."""
        singles = [WORD_START, *"abcdefghijklmnopqrstuvwxyz'"]
        self.merges = list(merges) if merges is not None else learn_merges(_heard_words(), size - 1 - len(singles))
        self.vocabulary = ["<unk>", *singles, *(left + right for left, right in self.merges)]
        assert len(set(self.vocabulary)) == size, "two merges spell the same piece"
        self._id = {piece: index for index, piece in enumerate(self.vocabulary)}
        self._spelled: dict[str, list[int]] = {}

    def encode_words(self, text: str) -> list[list[int]]:
        """A transcript → the pieces of each word."""
        for word in text.split():
            if word not in self._spelled:
                self._spelled[word] = self._encode(WORD_START + word)
        return [self._spelled[word] for word in text.split()]

    def _encode(self, word: str) -> list[int]:
        parts: tuple[str, ...] = tuple(word)
        for merge in self.merges:
            if len(parts) > 1:
                parts = join(parts, merge)
        return [self._id[part] for part in parts]

    def decode(self, ids: Iterable[int]) -> str:
        """Pieces → transcript."""
        return "".join(self.vocabulary[index] for index in ids).replace(WORD_START, " ").strip()


def longest_pieces(text: str, vocabulary: Sequence[str]) -> list[str]:
    """A transcript → pieces, from left to right the longest that fits; needs the pieces alone, not their merges."""
    known = set(vocabulary)
    found, rest = [], "".join(WORD_START + word for word in text.split())
    while rest:
        size = next((size for size in range(LONGEST_TOKEN, 1, -1) if rest[:size] in known), 1)
        found.append(rest[:size])
        rest = rest[size:]
    return found


def _heard_words() -> Counter[str]:
    words: Counter[str] = Counter()
    heard = [question.text for question in content.questions()] * 3
    for text in [*heard, *content.answer_texts(), *content.unknown_sentences()]:
        words.update(WORD_START + word for word in content.transcript(text).split())
    return words
