"""The transcript branch: LSTM, joint and greedy decoding against a NumPy loop that follows the specification."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from tests.models import normal, randomised, weights_of
from voicechat_mlx.config import AudioConfig, DecoderConfig, EncoderConfig, JointConfig
from voicechat_mlx.nn.cache import arrays_of
from voicechat_mlx.nn.lstm import LSTM
from voicechat_mlx.perception.rnnt import LOOKAHEAD_FRAMES, GreedyRnnt, JointNetwork, RnntDecoder

PIECES, WIDTH, MAX_SYMBOLS = 7, 6, 10
CONFIG = AudioConfig(
    encoder=EncoderConfig(d_model=8, n_heads=2),
    decoder=DecoderConfig(pred_hidden=WIDTH, vocab_size=PIECES),
    joint=JointConfig(joint_hidden=5, encoder_hidden=8, pred_hidden=WIDTH, num_classes=PIECES),
)
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def lstm_by_hand(weights: dict[str, np.ndarray], x: np.ndarray, states: list[tuple[np.ndarray, np.ndarray]]):
    """One step through every layer, gates in the order input, forget, cell, output → (output, new states)."""
    new = []
    for layer, (h, c) in enumerate(states):
        gates = weights[f"weight_ih_l{layer}"] @ x + weights[f"bias_ih_l{layer}"]
        gates = gates + weights[f"weight_hh_l{layer}"] @ h + weights[f"bias_hh_l{layer}"]
        i, f, g, o = np.split(gates, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        x = sigmoid(o) * np.tanh(c)
        new.append((x, c))
    return x, new


def zero_states(layers: int = 2) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(np.zeros(WIDTH), np.zeros(WIDTH)) for _ in range(layers)]


def networks(seed: int = 0, blank_bias: float = 0.0) -> tuple[RnntDecoder, JointNetwork]:
    decoder = randomised(RnntDecoder(CONFIG), seed=seed, std=1.0)
    joint = randomised(JointNetwork(CONFIG), seed=seed + 1, std=0.7)
    joint.joint_net[2].bias[PIECES] += blank_bias
    return decoder, joint


def greedy_by_hand(decoder: RnntDecoder, joint: JointNetwork, frames: np.ndarray) -> list[tuple[int, int]]:
    """(frame, piece) in order: the loop of the specification, one joint evaluation for each symbol."""
    lstm = {name.removeprefix("prediction.dec_rnn.lstm."): array for name, array in weights_of(decoder).items()}
    j = weights_of(joint)
    last, states, found = PIECES, zero_states(), []
    for index, frame in enumerate(frames):
        for _ in range(MAX_SYMBOLS):
            x = np.zeros(WIDTH) if last == PIECES else lstm["prediction.embed.weight"][last]
            out, moved = lstm_by_hand(lstm, x, states)
            hidden = j["enc.weight"] @ frame + j["enc.bias"] + j["pred.weight"] @ out + j["pred.bias"]
            piece = int(np.argmax(j["joint_net.2.weight"] @ np.maximum(hidden, 0) + j["joint_net.2.bias"]))
            if piece == PIECES:
                break
            last, states = piece, moved
            found.append((index, piece))
    return found


def decode(decoder: RnntDecoder, joint: JointNetwork, frames: mx.array, cuts: list[int]) -> list[tuple[int, int]]:
    greedy = GreedyRnnt(decoder, joint, MAX_SYMBOLS)
    cache, start, found = greedy.make_cache(), 0, []
    for part in mx.split(frames, cuts, axis=1):
        pieces = greedy.decode(part, cache, first_frame=start)
        found += list(zip(pieces.frames, pieces.ids, strict=True))
        start += part.shape[1]
    return found


def test_lstm_equals_its_equations_over_several_steps() -> None:
    lstm, x = randomised(LSTM(WIDTH, 3), std=0.8), normal(5, 1, WIDTH)
    cache, states = lstm.make_cache(1), zero_states(3)
    for step in x:
        expected, states = lstm_by_hand(weights_of(lstm), np.asarray(step[0], np.float64), states)
        np.testing.assert_allclose(lstm(step, cache)[0], expected, **CLOSE)
    for found, expected in zip((cache.hidden, cache.cell), zip(*states, strict=True), strict=True):
        np.testing.assert_allclose(found[:, 0], expected, **CLOSE)


def test_blank_only_frames_emit_nothing_and_leave_the_state_alone() -> None:
    decoder, joint = networks(blank_bias=1e4)
    greedy = GreedyRnnt(decoder, joint, MAX_SYMBOLS)
    cache = greedy.make_cache()
    before = [np.asarray(array).copy() for array in arrays_of(cache)]
    pieces = greedy.decode(normal(1, 40, 8), cache)
    assert pieces.ids == [] == pieces.frames
    for old, new in zip(before, arrays_of(cache), strict=True):
        np.testing.assert_array_equal(old, new)


def test_max_symbols_bounds_the_loop() -> None:
    decoder, joint = networks(blank_bias=-1e4)
    found = decode(decoder, joint, normal(1, 3, 8), [])
    assert [frame for frame, _ in found] == [0] * 10 + [1] * 10 + [2] * 10


def test_blank_is_never_embedded() -> None:
    """The last row of the embedding is blank's; nothing depends on it."""
    decoder, joint = networks(blank_bias=2.0)
    frames = normal(1, 30, 8)
    before = decode(decoder, joint, frames, [])
    decoder.prediction.embed.weight[PIECES] = 1e3
    assert len(before) > 5
    assert decode(decoder, joint, frames, []) == before


@pytest.mark.parametrize("blank_bias", [-2.0, 0.0, 2.0, 4.0])
@pytest.mark.parametrize(
    "cuts", [[], [1], [16, 17, 33], list(range(1, 50))], ids=["whole", "after one", "odd", "single"]
)
def test_greedy_decoding_equals_the_loop_of_the_specification(blank_bias: float, cuts: list[int]) -> None:
    decoder, joint = networks(seed=3, blank_bias=blank_bias)
    frames = normal(1, 3 * LOOKAHEAD_FRAMES + 2, 8)
    expected = greedy_by_hand(decoder, joint, np.asarray(frames[0], np.float64))
    assert expected
    assert decode(decoder, joint, frames, cuts) == expected


@pytest.mark.parametrize("blank_bias", [-1e4, -2.0, 0.0, 2.0, 1e4])
def test_decoding_a_frame_on_the_device_equals_the_loop_of_the_specification(blank_bias: float) -> None:
    decoder, joint = networks(seed=3, blank_bias=blank_bias)
    frames = normal(1, 12, 8)
    greedy = GreedyRnnt(decoder, joint, MAX_SYMBOLS)
    cache, found = greedy.make_cache(), []
    for index in range(12):
        row = greedy.decode_frame(frames[:, index : index + 1], cache)
        assert row.shape == (MAX_SYMBOLS,)
        pieces = greedy.pieces(np.asarray(row), index)
        found += list(zip(pieces.frames, pieces.ids, strict=True))
    assert found == greedy_by_hand(decoder, joint, np.asarray(frames[0], np.float64))


def test_the_joint_scores_every_piece_and_blank() -> None:
    _, joint = networks()
    assert joint(normal(4, 5), normal(1, 5)).shape == (4, PIECES + 1)
    assert isinstance(joint.joint_net[2], nn.Linear)
