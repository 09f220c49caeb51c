"""Between ids and text: the language model's tokenizer, its streaming decoder, RNNT pieces, and characters.

Unusual: the streaming decoder works on bytes, not on strings, so a character made of several tokens comes out once
and whole, and the deltas joined are exactly the decode of all ids together.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from voicechat_mlx.errors import CheckpointError, InputError

SPECIAL_PIECES = frozenset(("<unk>", "<pad>", "<s>", "</s>"))
LANGUAGE_TAG = re.compile(r"<[a-z]{2,3}-[A-Za-z]{2,4}>")
LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
WORD_START = "▁"


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each of the 256 bytes: itself where it prints, else a character from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


BYTE_OF_CHARACTER = _byte_alphabet()


class TextTokenizer:
    """tokenizer.json, a byte-level BPE. Special tokens are never added, and never hidden.

    What the file says about truncation and padding is for batches of training and not followed: text is never cut.
    """

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError when the file cannot be read or is not byte-level."""
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception for every fault of the file
            raise CheckpointError(f"{path} is not a tokenizer ({error}); download the checkpoint again") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        probe = [id for token, id in sorted(self.vocabulary.items()) if len(token) == 1]
        if self.decode(probe) != b"".join(map(self.token_bytes, probe)).decode("utf-8", "replace"):
            raise CheckpointError(f"{path} is not a byte-level BPE; use the tokenizer.json of the model's own training")

    @property
    def vocabulary(self) -> dict[str, int]:
        """Every token, added ones included → its id."""
        return self._tokenizer.get_vocab(with_added_tokens=True)

    @property
    def special_tokens(self) -> list[str]:
        """The tokens that are no text, such as `</s>`."""
        return [token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]

    def encode(self, text: str) -> list[int]:
        """Text → ids. Text that spells a special token (`</s>`) becomes that token, as the publisher's does.

        Raises InputError for anything but a str of whole characters.
        """
        if not isinstance(text, str):
            raise InputError(f"a prompt must be text (a str), found {type(text).__name__}")
        lone = LONE_SURROGATE.search(text)
        if lone:
            raise InputError(
                f"the prompt holds half a character, {lone[0]!r} at place {lone.start()}, which has no UTF-8 form; "
                f"decode it as UTF-8 or remove it"
            )
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Ids → text, special tokens visible, nothing stripped; unknown ids give nothing."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def token_bytes(self, id: int) -> bytes:
        """The bytes that one token adds to the text; none for an unknown id."""
        token = self._tokenizer.id_to_token(id) or ""
        if all(character in BYTE_OF_CHARACTER for character in token):
            return bytes(BYTE_OF_CHARACTER[character] for character in token)
        return token.encode()

    def prompt_ids(self, prompt: str | None, *, bos: int, eos: int) -> list[int]:
        """A system prompt → [bos] + ids + [eos], unstripped; None, empty or only whitespace → []. Raises InputError."""
        ids = [] if prompt is None else self.encode(prompt)
        return [bos, *ids, eos] if prompt and prompt.strip() else []


class Detokenizer:
    """Decodes one id at a time. The deltas and the `finish()` joined equal `TextTokenizer.decode` of all ids."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """The text that is certain now; empty while a character lacks bytes."""
        return self._decoder.decode(self._tokenizer.token_bytes(id))

    def finish(self) -> str:
        """U+FFFD for a last character that never became whole, else nothing."""
        return self._decoder.decode(b"", final=True)


def piece_text(piece: str) -> str:
    """One RNNT piece → its text; nothing for `<unk>`, `<pad>`, `<s>`, `</s>` and language tags such as `<en-US>`."""
    if piece in SPECIAL_PIECES or LANGUAGE_TAG.fullmatch(piece):
        return ""
    return piece.replace(WORD_START, " ")


def decode_pieces(ids: Iterable[int], vocabulary: Sequence[str]) -> str:
    """RNNT ids → the transcript, stripped."""
    return "".join(piece_text(vocabulary[id]) for id in ids).strip()


class RnntPieces:
    """`decode_pieces` one id at a time: the deltas joined are the stripped transcript, so no space waits at the end."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._vocabulary = vocabulary
        self._started = False
        self._held_space = ""

    def push(self, id: int) -> str:
        """The text that this id makes certain; spaces are held back until something follows them."""
        text = self._held_space + piece_text(self._vocabulary[id])
        if not self._started:
            text = text.lstrip()
        shown = text.rstrip()
        self._held_space = text[len(shown) :]
        self._started = self._started or bool(shown)
        return shown


@dataclass(frozen=True, kw_only=True)
class CharacterTable:
    """Subword id → the dense indices of its characters, ready to be gathered on the device."""

    indices: NDArray[np.int32]
    """(vocab_size, longest subword); unused places hold `padding`."""
    lengths: NDArray[np.int32]
    """(vocab_size,) characters of each subword; 0 for ids that the tokenizer does not have."""
    padding: int
    """The last index of the character vocabulary."""

    @classmethod
    def build(cls, vocabulary: dict[str, int], *, vocab_size: int, char_vocab_size: int) -> CharacterTable:
        """Character vocabulary: the tokens that are one character, in order of their ids, then padding.

        A subword is spelt by the characters of its vocabulary string, special tokens included (`</s>` is four), as
        the publisher does; the publisher fails on a character outside the character vocabulary, here it is left out.
        Raises CheckpointError when the number of characters is not `char_vocab_size - 1` or an id is too large.
        """
        single = sorted((token for token in vocabulary if len(token) == 1), key=vocabulary.__getitem__)
        if len(single) != char_vocab_size - 1:
            raise CheckpointError(
                f"tokenizer.json has {len(single)} tokens of one character; expected {char_vocab_size - 1} "
                f"(tts_config.character_encoder.char_vocab_size - 1): it belongs to another model"
            )
        largest = max(vocabulary.values())
        if largest >= vocab_size:
            raise CheckpointError(
                f"tokenizer.json has token id {largest} but text_config.vocab_size is {vocab_size}: "
                f"it belongs to another model"
            )
        index = {character: place for place, character in enumerate(single)}
        spelt = {id: [index[letter] for letter in token if letter in index] for token, id in vocabulary.items()}
        indices = np.full((vocab_size, max(map(len, spelt.values()))), len(single), dtype=np.int32)
        lengths = np.zeros(vocab_size, dtype=np.int32)
        for id, characters in spelt.items():
            indices[id, : len(characters)] = characters
            lengths[id] = len(characters)
        return cls(indices=indices, lengths=lengths, padding=len(single))
