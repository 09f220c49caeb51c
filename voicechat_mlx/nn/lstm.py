"""A stack of LSTM layers with torch's parameter names and gate order (input, forget, cell, output)."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from voicechat_mlx.nn.cache import Cache


class LSTMCache(Cache):
    """Hidden and cell state of every layer, (L, B, width) each; zeros at the beginning."""

    def __init__(self, layers: int, batch: int, width: int) -> None:
        self.hidden = mx.zeros((layers, batch, width))
        self.cell = mx.zeros((layers, batch, width))


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
        """Both products of a layer become one: [W_ih | W_hh] and the sum of the two biases."""
        self._matrices, self._biases = [], []
        for layer in range(self._layers):
            joined = mx.concatenate([self[f"weight_ih_l{layer}"], self[f"weight_hh_l{layer}"]], axis=1)
            self._matrices.append(joined.T)
            self._biases.append(self[f"bias_ih_l{layer}"] + self[f"bias_hh_l{layer}"])

    def make_cache(self, batch: int) -> LSTMCache:
        """The state before the first step."""
        return LSTMCache(self._layers, batch, self._width)

    def __call__(self, x: mx.array, cache: LSTMCache) -> mx.array:
        """(B, input) → (B, width), one step; the cache moves on."""
        hidden, cell = [], []
        for layer in range(self._layers):
            gates = mx.addmm(
                self._biases[layer], mx.concatenate([x, cache.hidden[layer]], axis=1), self._matrices[layer]
            )
            i, f, g, o = mx.split(gates, 4, axis=1)
            cell.append(mx.sigmoid(f) * cache.cell[layer] + mx.sigmoid(i) * mx.tanh(g))
            x = mx.sigmoid(o) * mx.tanh(cell[-1])
            hidden.append(x)
        cache.hidden, cache.cell = mx.stack(hidden), mx.stack(cell)
        return x
