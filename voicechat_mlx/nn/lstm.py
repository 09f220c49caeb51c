"""A stack of LSTM layers with torch's parameter names and gate order (input, forget, cell, output)."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from voicechat_mlx.nn.cache import Cache


class LSTMLayerCache(Cache):
    """Hidden and cell state of one layer, (B, width) each; zeros at the beginning."""

    def __init__(self, batch: int, width: int) -> None:
        self.hidden = mx.zeros((batch, width))
        self.cell = mx.zeros((batch, width))


class LSTMCache(Cache):
    """The state of every layer."""

    def __init__(self, layers: list[LSTMLayerCache]) -> None:
        self.layers = layers


class LSTM(nn.Module):
    """h' = o · tanh(f · c + i · g), all layers, one step at a time."""

    def __init__(self, input_size: int, hidden_size: int, layers: int) -> None:
        super().__init__()
        self._layers, self._width = layers, hidden_size
        for layer in range(layers):
            self[f"weight_ih_l{layer}"] = mx.zeros((4 * hidden_size, input_size if layer == 0 else hidden_size))
            self[f"weight_hh_l{layer}"] = mx.zeros((4 * hidden_size, hidden_size))
            self[f"bias_ih_l{layer}"] = mx.zeros((4 * hidden_size,))
            self[f"bias_hh_l{layer}"] = mx.zeros((4 * hidden_size,))
        self.prepare()

    def prepare(self) -> None:
        """Both products of a layer become one, [W_ih | W_hh], and so do its two biases."""
        self._matrices, self._biases = [], []
        for layer in range(self._layers):
            self._matrices.append(mx.concatenate([self[f"weight_ih_l{layer}"], self[f"weight_hh_l{layer}"]], axis=1))
            self._biases.append(self[f"bias_ih_l{layer}"] + self[f"bias_hh_l{layer}"])

    def make_cache(self, batch: int) -> LSTMCache:
        """The state before the first step."""
        return LSTMCache([LSTMLayerCache(batch, self._width) for _ in range(self._layers)])

    def __call__(self, x: mx.array, cache: LSTMCache) -> mx.array:
        """(B, input) → (B, width), one step; the cache moves on."""
        for matrix, bias, state in zip(self._matrices, self._biases, cache.layers, strict=True):
            gates = mx.concatenate([x, state.hidden], axis=1) @ matrix.T + bias
            i, f, g, o = mx.split(gates, 4, axis=1)
            state.cell = mx.sigmoid(f) * state.cell + mx.sigmoid(i) * mx.tanh(g)
            state.hidden = x = mx.sigmoid(o) * mx.tanh(state.cell)
        return x
