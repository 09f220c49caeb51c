"""Ids and text: exact decoding, token by token or at once; prompts; RNNT pieces; characters."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from voicechat_mlx.errors import CheckpointError, InputError
from voicechat_mlx.text import CharacterTable, Detokenizer, RnntPieces, TextTokenizer, decode_pieces

BOS, EOS = 1, 2
VOCABULARY_SIZE, SPECIAL_TOKENS = 384, 24
TEXTS = ("", " ", "Paris", " what is the capital?", "naïve café", "日本語", "😀👩\u200d👧", "مرحبا", "a\nb\t c  ", "\0")
PIECES = ["<unk>", "<pad>", "<s>", "</s>", "<en-US>", "<hin-IN>", "<EN-us>", "▁", "▁the", "▁cap", "ital", "▁ ▁", "<x>"]


@pytest.fixture(scope="module")
def tokenizer(tiny_fp32) -> TextTokenizer:
    return TextTokenizer(tiny_fp32 / "tokenizer.json")


def streamed(tokenizer: TextTokenizer, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push(id) for id in ids), detokenizer.finish()]


# --- decoding ---


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back_exactly_at_once_and_token_by_token(tokenizer, text) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert "".join(streamed(tokenizer, ids)) == text


def test_a_character_of_several_tokens_comes_out_once_and_whole(tokenizer) -> None:
    # four bytes, no merges: four tokens, and no U+FFFD on the way
    assert streamed(tokenizer, tokenizer.encode("😀")) == ["", "", "", "😀", ""]


def test_bytes_that_never_become_a_character_are_given_at_the_end(tokenizer) -> None:
    first_two = tokenizer.encode("😀")[:2]
    assert streamed(tokenizer, first_two) == ["", "", "\ufffd"]
    assert tokenizer.decode(first_two) == "\ufffd"


@given(st.lists(st.integers(0, VOCABULARY_SIZE - 1), max_size=40))
def test_deltas_joined_equal_the_whole_decode_for_any_ids(tokenizer, ids) -> None:
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


@given(st.binary(max_size=12))
def test_deltas_joined_equal_the_whole_decode_for_any_bytes(tokenizer, data) -> None:
    by_byte = {tokenizer.token_bytes(id): id for id in range(SPECIAL_TOKENS, SPECIAL_TOKENS + 256)}
    ids = [by_byte[bytes([byte])] for byte in data]
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids) == data.decode("utf-8", "replace")


def test_special_tokens_are_visible_and_nothing_is_stripped(tokenizer) -> None:
    ids = [1, *tokenizer.encode(" hello "), 12, 2]
    assert tokenizer.decode(ids) == "<s> hello <SPECIAL_12></s>"
    assert "".join(streamed(tokenizer, ids)) == "<s> hello <SPECIAL_12></s>"


def test_an_id_that_the_tokenizer_does_not_have_gives_nothing(tokenizer) -> None:
    assert tokenizer.decode([VOCABULARY_SIZE + 3]) == ""
    assert streamed(tokenizer, [VOCABULARY_SIZE + 3]) == ["", ""]


def test_streaming_costs_the_same_for_every_token(tokenizer) -> None:
    ids = tokenizer.encode(" the capital of France") * 400

    def seconds(count: int) -> float:
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            streamed(tokenizer, ids[:count])
            best = min(best, time.perf_counter() - start)
        return best

    # eight times the tokens: linear is 8, quadratic 64
    assert seconds(len(ids)) < 20 * seconds(len(ids) // 8)


# --- prompts ---


@pytest.mark.parametrize("prompt", [None, "", " ", "\n", " \t\n "])
def test_a_prompt_without_words_is_no_prompt(tokenizer, prompt) -> None:
    assert tokenizer.prompt_ids(prompt, bos=BOS, eos=EOS) == []


@pytest.mark.parametrize("prompt", ["Be concise.", "  spaces stay  ", "line\nbreak", "😀", "مرحبا", "x" * 10_000])
def test_a_prompt_is_framed_by_bos_and_eos_and_not_stripped(tokenizer, prompt) -> None:
    ids = tokenizer.prompt_ids(prompt, bos=BOS, eos=EOS)
    assert (ids[0], ids[-1]) == (BOS, EOS)
    assert tokenizer.decode(ids[1:-1]) == prompt


def test_no_special_token_is_added_although_the_file_asks_for_bos(tokenizer, tiny_fp32) -> None:
    assert json.loads((tiny_fp32 / "tokenizer.json").read_text())["post_processor"] is not None
    assert BOS not in tokenizer.encode("hello")


@pytest.mark.parametrize(("text", "id"), [("<s>", 1), ("</s>", 2), ("<SPECIAL_12>", 12)])
def test_text_that_spells_a_special_token_becomes_that_token(tokenizer, text, id) -> None:
    assert tokenizer.encode(text) == [id]


# --- RNNT pieces ---


def test_pieces_join_with_spaces_for_their_marks() -> None:
    assert decode_pieces([8, 9, 10], PIECES) == "the capital"


def test_special_pieces_and_language_tags_are_dropped_and_ordinary_brackets_kept() -> None:
    # <EN-us> and <x> do not have the form of a tag
    assert decode_pieces([0, 1, 4, 8, 2, 5, 6, 12, 3], PIECES) == "the<EN-us><x>"


@pytest.mark.parametrize("ids", [[], [0, 4], [7], [7, 7, 4]])
def test_nothing_but_specials_and_spaces_is_an_empty_transcript(ids) -> None:
    assert decode_pieces(ids, PIECES) == ""


@given(st.lists(st.integers(0, len(PIECES) - 1), max_size=30))
def test_transcript_deltas_joined_are_the_transcript(ids) -> None:
    pieces = RnntPieces(PIECES)
    joined = ""
    for count, id in enumerate(ids, start=1):
        joined += pieces.push(id)
        assert joined == decode_pieces(ids[:count], PIECES)  # stripped at every moment
    assert joined == decode_pieces(ids, PIECES)


# --- characters ---


def table_of(tokenizer: TextTokenizer, **sizes: int) -> CharacterTable:
    return CharacterTable.build(tokenizer.vocabulary, **{"vocab_size": 389, "char_vocab_size": 257, **sizes})


def test_characters_are_the_single_character_tokens_in_order_of_their_ids(tokenizer) -> None:
    table = table_of(tokenizer)
    for place in range(256):  # ids 24 … 279 are the characters
        id = SPECIAL_TOKENS + place
        assert (table.lengths[id], table.indices[id, 0]) == (1, place)
    assert table.padding == 256


def test_a_subword_is_spelt_by_the_characters_of_its_vocabulary_string(tokenizer) -> None:
    table = table_of(tokenizer)
    for token in ("Ġthe", "</s>", "<SPECIAL_12>"):
        id = tokenizer.vocabulary[token]
        spelling = [tokenizer.vocabulary[character] - SPECIAL_TOKENS for character in token]
        assert table.indices[id, : table.lengths[id]].tolist() == spelling
        assert set(table.indices[id, table.lengths[id] :].tolist()) <= {table.padding}


def test_ids_that_the_tokenizer_does_not_have_are_empty(tokenizer) -> None:
    table = table_of(tokenizer)
    assert table.indices.shape[0] == table.lengths.shape[0] == 389
    assert table.lengths[VOCABULARY_SIZE:].tolist() == [0] * 5
    assert (table.indices[VOCABULARY_SIZE:] == table.padding).all()


def test_the_table_can_be_gathered_on_a_device(tokenizer) -> None:
    table = table_of(tokenizer)
    assert (table.indices.dtype, table.lengths.dtype) == (np.int32, np.int32)
    assert table.indices.shape[1] == len("<SPECIAL_12>")  # the longest token


def test_a_character_outside_the_character_vocabulary_is_left_out() -> None:
    vocabulary = {"a": 0, "b": 1, "aéb": 2, "éé": 3}
    table = CharacterTable.build(vocabulary, vocab_size=4, char_vocab_size=3)
    assert table.indices[2, :2].tolist() == [0, 1]
    assert table.lengths.tolist() == [1, 1, 2, 0]


@pytest.mark.parametrize("count", [255, 257])
def test_too_few_or_too_many_single_characters_are_refused_with_the_count(tokenizer, count) -> None:
    vocabulary = dict(tokenizer.vocabulary)
    if count == 255:
        del vocabulary["a"]
    else:
        vocabulary["日"] = 380
    with pytest.raises(CheckpointError, match=f"{count} tokens of one character; expected 256"):
        CharacterTable.build(vocabulary, vocab_size=389, char_vocab_size=257)


def test_a_token_id_beyond_the_models_vocabulary_is_refused(tokenizer) -> None:
    with pytest.raises(CheckpointError, match=r"token id 383 but text_config.vocab_size is 300"):
        table_of(tokenizer, vocab_size=300)


# --- files that are no tokenizer ---


@pytest.mark.parametrize("text", ["", "not json", "{}", "[1]"])
def test_a_file_that_is_no_tokenizer_is_refused_by_name(tmp_path, text) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a tokenizer") as error:
        TextTokenizer(path)
    assert "\n" not in str(error.value)


def test_a_tokenizer_that_does_not_work_on_bytes_is_refused(tmp_path) -> None:
    path: Path = tmp_path / "tokenizer.json"
    words = {character: id for id, character in enumerate("<abc")}
    Tokenizer(models.WordLevel(words, unk_token="<")).save(str(path))
    with pytest.raises(CheckpointError, match="not a byte-level BPE"):
        TextTokenizer(path)


# --- what the file says about batches, and prompts that are no text ---


def test_truncation_and_padding_in_the_file_change_no_prompt(tokenizer, tiny_fp32, tmp_path) -> None:
    changed = Tokenizer.from_file(str(tiny_fp32 / "tokenizer.json"))
    changed.enable_truncation(2)
    changed.enable_padding(length=64)
    changed.save(str(tmp_path / "tokenizer.json"))
    text = "what is the capital of France?"
    assert TextTokenizer(tmp_path / "tokenizer.json").encode(text) == tokenizer.encode(text)


@pytest.mark.parametrize("prompt", [b"Be concise.", b"", 0, 7, ["Be", "concise"], [], True])
def test_a_prompt_that_is_not_text_is_refused(tokenizer, prompt) -> None:
    with pytest.raises(InputError, match=f"a prompt must be text .*, found {type(prompt).__name__}$"):
        tokenizer.prompt_ids(prompt, bos=BOS, eos=EOS)


@pytest.mark.parametrize("half", ["\ud800", "\udfff", "\udc80"])
def test_a_prompt_with_half_a_character_is_refused_with_its_place(tokenizer, half) -> None:
    with pytest.raises(InputError, match=r"half a character, .* at place 3") as error:
        tokenizer.prompt_ids(f"Be {half}!", bos=BOS, eos=EOS)
    str(error.value).encode()  # can be printed
