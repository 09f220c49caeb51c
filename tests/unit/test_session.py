"""What a caller of `Session` may rely on: what it accepts, what it gives back, and in which order."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import voicechat_mlx as vc
from tests.models import SHALLOW, build, hasty, shallow, speech, tiny, tokenizer
from tests.talks import assert_identical, outcome, talk
from voicechat_mlx import AudioError, ConfigError, Session, SessionError
from voicechat_mlx.events import Audio, Done, Event, FunctionDelta, TextDelta, TranscriptDelta
from voicechat_mlx.text import decode_pieces

SAMPLES = 1764
PROMPT = "Be concise and answer in one sentence."


def frames_of(samples: int) -> int:
    rows = 1 + samples // 160
    return (rows - 2) // 8 + 2 if rows > 1 else 1


# What it accepts


@pytest.mark.parametrize("empty", [np.zeros(0, np.float32), [], ()], ids=["array", "list", "tuple"])
def test_an_empty_push_is_valid_at_any_time_and_gives_nothing(empty: object) -> None:
    session = Session(shallow(), "")
    pcm = speech(0.6)
    assert session.push(empty) == []
    events = session.push(pcm[:5000])
    assert session.push(empty) == []
    events += [*session.push(pcm[5000:]), *session.push(empty), *session.finish()]
    assert_identical(outcome(session, events), talk(shallow(), pcm, [5000]))


def test_pushing_or_finishing_after_the_end_is_an_error_and_changes_nothing() -> None:
    session = Session(shallow(), "")
    session.push(speech(0.3))
    session.finish()
    before = session.text_tokens.copy()
    for call in (lambda: session.push(speech(0.3)), lambda: session.push([]), session.finish):
        with pytest.raises(SessionError, match="finished"):
            call()
    np.testing.assert_array_equal(session.text_tokens, before)


def test_a_session_that_heard_nothing_has_only_an_end() -> None:
    session = Session(shallow(), "")
    assert session.finish() == [Done(frame=0)]
    assert session.text_tokens.shape == session.function_tokens.shape == (0,)
    assert session.audio_codes.shape == (0, 31)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.array([0.0, 0.1, np.nan], np.float32), "2"),
        (np.array([0.0, np.inf], np.float32), "1"),
        (np.zeros((2, 100), np.float32), r"\(2, 100\)"),
    ],
    ids=["nan", "infinity", "two channels"],
)
def test_a_push_that_is_refused_leaves_the_session_as_it_was(bad: np.ndarray, message: str) -> None:
    session, pcm = Session(shallow(), ""), speech(0.6)
    events = session.push(pcm[:4000])
    with pytest.raises(AudioError, match=message):
        session.push(bad)
    events += [*session.push(pcm[4000:]), *session.finish()]
    assert_identical(outcome(session, events), talk(shallow(), pcm, [4000]))


def test_a_caller_may_reuse_the_buffer_that_was_pushed() -> None:
    session, pcm, events = Session(shallow(), ""), speech(0.6), []
    buffer = np.zeros(1280, np.float32)
    for start in range(0, len(pcm), 1280):
        piece = pcm[start : start + 1280]
        buffer[: len(piece)] = piece
        events += session.push(buffer[: len(piece)])
        buffer[:] = 9.0
    events += session.finish()
    assert_identical(outcome(session, events), talk(shallow(), pcm, range(1280, len(pcm), 1280)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_floats_of_any_width_are_taken_as_float32(dtype: type) -> None:
    pcm = speech(0.4).astype(np.float16)
    assert_identical(talk(shallow(), pcm.astype(dtype)), talk(shallow(), pcm.astype(np.float32)))


def test_unknown_conventions_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown"):
        Session(shallow(), "", conventions="other")


# What it gives back


def test_deltas_joined_are_the_whole_texts() -> None:
    model, hidden = tiny(), {12, 11, 1, 2}
    found = talk(model, speech(4.0))
    for kind, ids in ((TextDelta, found.text_ids), (FunctionDelta, found.function_ids)):
        assert found.joined(kind) == tokenizer().decode([id for id in ids if id not in hidden])
    assert found.joined(TextDelta)
    assert found.joined(TranscriptDelta) == decode_pieces([id for _, id in found.pieces], model.rnnt_vocabulary)
    assert all(text for kind in (TextDelta, FunctionDelta, TranscriptDelta) for _, text in found.deltas(kind))


def test_events_are_of_known_types_and_frames_never_go_back() -> None:
    found = talk(tiny(), speech(4.0), range(1280, 64000, 1280))
    assert {type(event) for event in found.events} <= {Audio, TextDelta, FunctionDelta, TranscriptDelta, Done}
    frames = [event.frame for event in found.events if not isinstance(event, Audio | Done)]
    assert frames == sorted(frames)
    assert max(frames) < len(found.text_ids)
    assert [type(event) for event in found.events].count(Done) == 1


def test_within_a_frame_the_transcript_comes_first_then_text_then_function() -> None:
    order = [TranscriptDelta, TextDelta, FunctionDelta]
    events = [event for event in talk(tiny(), speech(4.0)).events if type(event) in order]
    places = [(event.frame, order.index(type(event))) for event in events]
    assert places[:-2] == sorted(places[:-2])  # the last two may be what the detokenisers held back


@pytest.mark.parametrize("cuts", [[], [20000], range(1280, 32000, 1280), [1, 5000, 5001, 31999]], ids=str)
def test_audio_comes_in_whole_frames_without_gaps(cuts: list[int]) -> None:
    found = talk(shallow(), speech(2.0), cuts)
    expected = 0
    for event in found.events:
        if isinstance(event, Audio):
            assert event.frame == expected
            assert event.samples.dtype == np.float32
            assert event.samples.ndim == 1
            assert len(event.samples) % SAMPLES == 0
            assert len(event.samples) > 0
            expected += len(event.samples) // SAMPLES
    assert found.events[-1] == Done(frame=expected)


@pytest.mark.parametrize("samples", [1, 2, 159, 160, 161, 200, 201, 256, 257, 399, 400, 1279, 1280, 1281, 2719, 2720])
def test_there_are_as_many_frames_as_the_encoder_gives(samples: int) -> None:
    found = talk(shallow(), speech(0.2)[:samples])
    frames = frames_of(samples)
    assert found.events[-1] == Done(frame=frames)
    assert len(found.text_ids) == len(found.function_ids) == frames
    assert found.codes.shape == (frames, 31)
    assert found.audio.shape == (frames * SAMPLES,)
    assert np.isfinite(found.audio).all()


def test_frame_k_is_answered_once_the_samples_below_1280_k_plus_200_are_in() -> None:
    """Frame 0 waits for one sample more, the farthest that the frontend reflects."""
    session = Session(shallow(), "")
    pcm = speech(0.5)
    for pushed, sample in enumerate(pcm[:4200], start=1):
        session.push([sample])
        assert session.frames == (0 if pushed < 201 else (pushed - 200) // 1280 + 1)


def test_the_sound_of_a_frame_comes_with_the_frame_after_it() -> None:
    session, pcm, heard = Session(shallow(), ""), speech(0.5), []
    for start in range(0, len(pcm), 40):
        heard += [event for event in session.push(pcm[start : start + 40]) if isinstance(event, Audio)]
        assert sum(len(event.samples) for event in heard) == max(0, session.frames - 1) * SAMPLES


def test_ids_and_codes_may_be_read_at_any_time() -> None:
    session, pcm = Session(tiny(), ""), speech(1.0)
    session.push(pcm[:8000])
    early = session.text_tokens.tolist(), session.audio_codes.tolist()
    assert len(early[0]) == len(early[1]) == session.frames > 0
    session.push(pcm[8000:])
    session.finish()
    assert session.text_tokens.tolist()[: len(early[0])] == early[0]
    assert session.audio_codes.tolist()[: len(early[1])] == early[1]
    assert session.text_tokens.dtype == session.function_tokens.dtype == session.audio_codes.dtype == np.int32


def test_seconds_by_stage_add_up_to_less_than_the_time_that_passed() -> None:
    session = Session(shallow(), "")
    session.push(speech(0.5))
    session.finish()
    assert {"prompt", "frontend", "perception", "rnnt", "codec"} <= set(session.seconds)
    assert all(0 <= seconds < 10 for seconds in session.seconds.values())


# System prompts


def prompted(model, prompt: str | None) -> list[int]:
    """Text ids, function ids and codes in one list."""
    found = talk(model, speech(1.0), system_prompt=prompt)
    return [*found.text_ids, *found.function_ids, *found.codes.reshape(-1).tolist()]


def test_a_prompt_changes_the_answer_but_not_its_length() -> None:
    with_prompt, without = prompted(tiny(), PROMPT), prompted(tiny(), "")
    assert with_prompt != without
    assert len(with_prompt) == len(without)


@pytest.mark.parametrize("blank", ["", " ", "\n", " \t\n "])
def test_a_blank_prompt_is_none_at_all(blank: str) -> None:
    assert prompted(shallow(), blank) == prompted(shallow(), None)


def test_a_prompt_is_not_stripped() -> None:
    assert prompted(tiny(), f"  {PROMPT}") != prompted(tiny(), PROMPT)


def test_the_default_prompt_of_the_config_is_taken_for_none_and_only_for_none() -> None:
    model = build(SHALLOW, extra={"default_system_prompt": PROMPT})
    assert prompted(model, None) == prompted(shallow(), PROMPT) == prompted(model, PROMPT)
    assert prompted(model, "") == prompted(shallow(), "")
    assert prompted(model, "Hello.") == prompted(shallow(), "Hello.")


@pytest.mark.parametrize(
    "prompt",
    ["🙂 naïve", "שלום עולם", "</s>", "<s><SPECIAL_12></s>", "line\nline", " capital" * 1250, "\x00"],
    ids=["emoji", "right to left", "eos", "specials", "newline", "10 000 characters", "nul"],
)
def test_prompts_of_every_kind_are_answered(prompt: str) -> None:
    found = talk(hasty(), speech(0.2), system_prompt=prompt)
    assert len(found.text_ids) == frames_of(3200)
    assert np.isfinite(found.audio).all()


def event_kinds() -> tuple[type[Event], ...]:
    return (Audio, TextDelta, FunctionDelta, TranscriptDelta, Done)


def test_only_audio_has_samples_and_none_has_audio() -> None:
    for kind in event_kinds():
        names = set(kind.__dataclass_fields__)
        assert ("samples" in names) is (kind is Audio)
        assert "audio" not in names


def test_a_session_broken_off_in_a_push_says_so_instead_of_going_on_out_of_step(monkeypatch) -> None:
    session = vc.Session(shallow(), "")
    session.push(speech(0.2))
    with monkeypatch.context() as patched:
        patched.setattr(session._pipeline, "advance", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.push(speech(0.2))
    with pytest.raises(vc.SessionError, match="broken off"):
        session.push(speech(0.2))
    with pytest.raises(vc.SessionError, match="broken off"):
        session.finish()


def _interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, None, "1"])
def test_a_seed_must_be_a_whole_number_that_fits(seed: object) -> None:
    with pytest.raises(vc.VoiceChatError, match="seed"):
        vc.Session(shallow(), "", seed=seed)


@pytest.mark.parametrize("pcm", [[[0.1], [0.1, 0.2]], mx.zeros(3, mx.bfloat16), object()])
def test_what_is_no_array_of_numbers_is_refused_and_the_session_goes_on(pcm: object) -> None:
    session = vc.Session(shallow(), "")
    with pytest.raises(vc.AudioError):
        session.push(pcm)
    session.push(speech(0.1))


@pytest.mark.parametrize(
    "options",
    [
        {"conventions": ["mlx"]},
        {"conventions": "Mlx"},
        {"extra_decoding_seconds": "1"},
        {"extra_decoding_seconds": None},
    ],
)
def test_wrong_arguments_of_generate_are_input_errors(options: dict) -> None:
    with pytest.raises(vc.InputError):
        vc.generate(shallow(), speech(0.1), **options)


@pytest.mark.parametrize(("source", "dtype"), [(3, "auto"), (b"x", "auto"), (None, ["auto"]), (None, "half")])
def test_wrong_arguments_of_load_are_input_errors(source: object, dtype: object) -> None:
    with pytest.raises(vc.InputError):
        vc.load(source, dtype)


def test_a_lazy_session_hears_its_prompt_bit_by_bit_or_with_the_first_samples() -> None:
    """One call of the language model for all n ids, and n - 1 steps of the talker, from position 1 on: n pieces."""
    model, pcm = shallow(), speech(0.5)
    eager = Session(model, "Hi.")
    count = eager.prompt_tokens
    expected = outcome(eager, eager.push(pcm) + eager.finish())
    bit_by_bit, all_at_once = Session(model, "Hi.", lazy=True), Session(model, "Hi.", lazy=True)
    heard = [bit_by_bit.prepare(1) for _ in range(count + 1)]
    assert heard == [False] * count + [True]
    for session in (bit_by_bit, all_at_once):
        assert_identical(outcome(session, session.push(pcm) + session.finish()), expected)
    with pytest.raises(SessionError):
        eager.prepare()


def test_a_long_prompt_is_heard_in_calls_of_bounded_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the language model remembers does not depend on how its input is cut."""
    model, prompt = shallow(), "What is the capital of France? " * 13
    whole = Session(model, prompt)
    monkeypatch.setattr("voicechat_mlx.duplex.PROMPT_AT_ONCE", 10_000)
    once = Session(model, prompt)
    assert whole.prompt_tokens > 128
    for session in (whole, once):
        session.push(speech(0.5))
    np.testing.assert_array_equal(whole.text_tokens, once.text_tokens)
    np.testing.assert_array_equal(whole.audio_codes, once.audio_codes)
