"""Where an answer ends, frame by frame, from ids and events written down by hand."""

from __future__ import annotations

from voicechat_mlx.events import Event, TextDelta, ToolCall
from voicechat_mlx.server.watch import Answer, Watch

BOS, EOS, PAD, WORD = 1, 2, 12, 99
SAID = [TextDelta(frame=0, text="word")]
CALLED: list[Event] = [ToolCall(frame=0, id="call_0", name="n", arguments={})]


def watch(quiet_frames: int = 3) -> Watch:
    return Watch(bos=BOS, eos=EOS, quiet_frames=quiet_frames)


def test_an_answer_ends_with_eos_after_words() -> None:
    found = watch()
    ends = [found.take([id], SAID if id == WORD else []) for id in (PAD, EOS, BOS, WORD, PAD, EOS, PAD, EOS)]
    assert ends == [False, False, False, False, False, True, False, False]


def test_an_answer_without_words_ends_too() -> None:
    found = watch()
    assert [found.take([id], []) for id in (BOS, PAD, EOS)] == [False, False, True]


def test_a_call_ends_the_turn() -> None:
    assert watch().take([PAD], CALLED)


def test_after_a_cancel_the_rest_is_muted_until_it_ends_by_itself() -> None:
    found = watch()
    found.take([WORD], SAID)
    found.cancel()
    muted = []
    for id in (WORD, PAD, EOS, PAD):
        assert not found.take([id], SAID if id == WORD else [])
        muted.append(found.muted)
    assert muted == [True, True, False, False]


def test_after_a_cancel_a_new_answer_is_heard() -> None:
    found = watch()
    found.cancel()
    assert not found.take([BOS], []) and not found.muted
    assert not found.take([WORD], SAID)
    assert found.take([EOS], [])


def test_after_a_cancel_quiet_ends_what_never_ends() -> None:
    found = watch(quiet_frames=3)
    found.cancel()
    muted = [found.take([PAD], []) or found.muted for _ in range(4)]
    assert muted == [True, True, False, False]


def test_a_call_is_shown_while_muted() -> None:
    found = watch()
    found.cancel()
    assert found.take([PAD], CALLED)


def test_supplied_silence_is_enough_after_quiet_counted_from_its_own_beginning() -> None:
    found, answer = watch(), Answer(quiet_frames=2, most_frames=100)
    for _ in range(10):
        found.take([PAD], [])
    assert not answer.ends(found, 1)
    found.take([WORD], SAID)
    assert not answer.ends(found, 1)
    found.take([PAD], [])
    assert not answer.ends(found, 1)
    found.take([PAD], [])
    assert answer.ends(found, 1)


def test_supplied_silence_has_an_end_even_if_the_model_never_stops() -> None:
    found, answer = watch(), Answer(quiet_frames=2, most_frames=4)
    ends = []
    for _ in range(4):
        found.take([WORD], SAID)
        ends.append(answer.ends(found, 1))
    assert ends == [False, False, False, True]
