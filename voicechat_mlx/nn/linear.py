"""Several linear layers on one input as one product."""

from __future__ import annotations

import weakref

import mlx.core as mx
from mlx import nn

from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.packed import BLOCK, PackedLinear, laid_out, packs

QUANTISED = ("weight", "scales", "biases")


class LinearGroup:
    """Layers without bias that read the same input, as one product.

    They are named, not held: quantising a module puts other layers into their places.
    """

    def __init__(self, owner: nn.Module, *names: str) -> None:
        self._owner, self._names = weakref.ref(owner), names  # no cycle, which would keep a dropped model for a while
        self._joined: dict[str, mx.array] = {}
        self._turned: mx.array | None = None
        """The joined weight as the product reads it, (in, all outputs), a view."""
        self._packed: PackedLinear | None = None
        self._bounds: list[int] = []
        for name in names[:-1]:
            self._bounds.append((self._bounds[-1] if self._bounds else 0) + owner[name].weight.shape[0])

    @property
    def _layers(self) -> list[nn.Module]:
        owner = self._owner()
        assert owner is not None
        return [owner[name] for name in self._names]

    def join(self) -> None:
        """When the weights are in place: make them views of one matrix, unless some are quantised otherwise.

        Evaluated at once, so that no layer is held twice for longer than it takes to join it.
        """
        if not self._alike():
            return
        names = [name for name in QUANTISED if name in self._layers[0]]
        joined = {name: mx.concatenate([layer[name] for layer in self._layers]) for name in names}
        mx.eval(joined)
        if names == ["weight"]:
            if packs(joined["weight"]) and not any(bound % BLOCK for bound in self._bounds):
                self._pack(joined["weight"])
                return
            joined["weight"] = laid_out(joined["weight"])
            self._turned = joined["weight"].T
            mx.eval(joined, self._turned)
        self._joined = joined
        for name in names:
            for layer, part in zip(self._layers, mx.split(joined[name], self._bounds), strict=True):
                layer[name] = part

    def _pack(self, weight: mx.array) -> None:
        """One matrix in blocks, of which each layer's are some."""
        for layer in self._layers:
            del layer["weight"]  # whoever goes through the modules holds the layer for a while
        self._packed = PackedLinear.of(weight)
        mx.eval(self._packed.blocks)
        owner = self._owner()
        assert owner is not None
        for name, part in zip(self._names, self._packed.split(self._bounds), strict=True):
            owner[name] = part

    def __call__(self, x: mx.array) -> mx.array:
        """(…, in) → all outputs side by side."""
        if self._packed:
            return self._packed(x)
        if self._turned is not None:
            return x @ self._turned
        if not self._joined:
            return mx.concatenate([layer(x) for layer in self._layers], axis=-1)
        weight, scales, biases = (self._joined[name] for name in QUANTISED)
        first = self._layers[0]
        return mx.quantized_matmul(x, weight, scales, biases, group_size=first.group_size, bits=first.bits)

    def split(self, y: mx.array) -> list[mx.array]:
        """What `__call__` gave → one (…, out) for each layer."""
        return list(mx.split(y, self._bounds, axis=-1))

    @property
    def weights(self) -> cuda.Weights | None:
        """The one matrix; None before `join`, or where it could not join."""
        if not self._joined:
            return None
        first = self._layers[0]
        if "scales" not in self._joined:
            return cuda.Weights(self._joined["weight"])
        weight, scales, offsets = (self._joined[name] for name in QUANTISED)
        return cuda.Weights(weight, scales, offsets, None, first.group_size, first.bits)

    def _alike(self) -> bool:
        if any("weight" not in layer for layer in self._layers):  # packed already
            return False
        kinds = {(type(layer), getattr(layer, "bits", 0), getattr(layer, "group_size", 0)) for layer in self._layers}
        return len(kinds) == 1 and len({layer.weight.dtype for layer in self._layers}) == 1
