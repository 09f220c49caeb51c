"""A stack of LSTM layers with torch's parameter names and gate order (input, forget, cell, output)."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from voicechat_mlx.nn.cache import Cache
from voicechat_mlx.nn.packed import affine


class LSTMCache(Cache):
    """Hidden and cell states of all layers, (layers, B, width) each; zeros at the beginning."""

    def __init__(self, layers: int, batch: int, width: int) -> None:
        self.hidden = mx.zeros((layers, batch, width))
        self.cell = mx.zeros((layers, batch, width))


class LSTM(nn.Module):
    """h' = o · tanh(f · c + i · g), all layers, one step at a time. Inputs are as wide as the state."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self._layers, self._width = layers, width
        for layer in range(layers):
            self[f"weight_ih_l{layer}"] = mx.zeros((4 * width, width))
            self[f"weight_hh_l{layer}"] = mx.zeros((4 * width, width))
            self[f"bias_ih_l{layer}"] = mx.zeros((4 * width,))
            self[f"bias_hh_l{layer}"] = mx.zeros((4 * width,))
        self.prepare()

    def prepare(self) -> None:
        """Both products of a layer become one, [W_ih | W_hh], and so do its two biases; all layers side by side."""
        layers = range(self._layers)
        pairs = [mx.concatenate([self[f"weight_ih_l{i}"], self[f"weight_hh_l{i}"]], axis=1) for i in layers]
        self._matrices = mx.stack(pairs)
        self._biases = mx.stack([self[f"bias_ih_l{i}"] + self[f"bias_hh_l{i}"] for i in layers])
        each = zip(*(mx.split(x, self._layers) for x in (self._matrices, self._biases)), strict=True)
        self._gates = [affine(matrix.squeeze(0), bias) for matrix, bias in each]

    @property
    def joined(self) -> tuple[mx.array, mx.array]:
        """[W_ih | W_hh] (layers, 4·width, 2·width) and their biases (layers, 4·width)."""
        return self._matrices, self._biases

    def make_cache(self, batch: int) -> LSTMCache:
        """The state before the first step."""
        return LSTMCache(self._layers, batch, self._width)

    def __call__(self, x: mx.array, cache: LSTMCache) -> mx.array:
        """(B, width) → (B, width), one step; the cache moves on."""
        hidden, cell = [], []
        past = zip(mx.split(cache.hidden, self._layers), mx.split(cache.cell, self._layers), strict=True)
        for gates, (before, kept) in zip(self._gates, past, strict=True):
            i, f, g, o = mx.split(gates(mx.concatenate([x, before.squeeze(0)], axis=1)), 4, axis=1)
            cell.append(mx.sigmoid(f) * kept.squeeze(0) + mx.sigmoid(i) * mx.tanh(g))
            x = mx.sigmoid(o) * mx.tanh(cell[-1])
            hidden.append(x)
        cache.hidden, cache.cell = mx.stack(hidden), mx.stack(cell)
        return x
