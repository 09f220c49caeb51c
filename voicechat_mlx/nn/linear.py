"""Linear layers for streams of one or two rows, and several of them on one input as one product."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from mlx import nn

from voicechat_mlx.nn import cuda

QUANTISED = ("weight", "scales", "biases")


def product(x: mx.array, weight: mx.array) -> mx.array:
    """x (…, K), weight (N, K) → (…, N). The talker's two guidance rows have a kernel of their own on CUDA."""
    if cuda.available() and x.size > x.shape[-1]:
        found = cuda.rows_matmul(x, weight)
        if found is not None:
            return found
    return x @ weight.T


class Linear(nn.Linear):
    """`nn.Linear` through `product`."""

    def __call__(self, x: mx.array) -> mx.array:
        """(…, in) → (…, out)."""
        y = product(x, self.weight)
        return y + self.bias if "bias" in self else y


class LinearGroup:
    """Layers without bias that read the same input, as one product. Their weights become views of one matrix.

    Made when the weights are in place (`prepare`), so that no layer is held twice for longer than it takes to join it.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers = list(layers)
        self._bounds = []
        self._joined: dict[str, mx.array] = {}
        total = 0
        for layer in self._layers[:-1]:
            total += layer.weight.shape[0]
            self._bounds.append(total)
        if self._alike():
            self._join()

    def __call__(self, x: mx.array) -> list[mx.array]:
        """(…, in) → one (…, out) for each layer."""
        if not self._joined:
            return [layer(x) for layer in self._layers]
        return list(mx.split(self.joined(x), self._bounds, axis=-1))

    def joined(self, x: mx.array) -> mx.array:
        """(…, in) → all outputs side by side."""
        if "scales" not in self._joined:
            return product(x, self._joined["weight"])
        weight, scales, biases = (self._joined[name] for name in QUANTISED)
        first = self._layers[0]
        return mx.quantized_matmul(x, weight, scales, biases, group_size=first.group_size, bits=first.bits)

    @property
    def is_joined(self) -> bool:
        """Whether there is one matrix: all layers dense, or all quantised alike."""
        return bool(self._joined)

    def _alike(self) -> bool:
        kinds = {(type(layer), getattr(layer, "bits", 0), getattr(layer, "group_size", 0)) for layer in self._layers}
        return len(kinds) == 1 and len({layer.weight.dtype for layer in self._layers}) == 1

    def _join(self) -> None:
        names = [name for name in QUANTISED if name in self._layers[0]]
        for name in names:
            self._joined[name] = mx.concatenate([layer[name] for layer in self._layers])
        mx.eval(self._joined)
        for name in names:
            for layer, part in zip(self._layers, mx.split(self._joined[name], self._bounds), strict=True):
                layer[name] = part
