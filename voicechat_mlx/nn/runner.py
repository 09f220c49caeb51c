"""Runs the stages of a frame as written, or compiled.

A stage is a function `stage(model, cache, *inputs)`. Compiled, it is the same function with the arrays of its cache as
explicit inputs and outputs, so that a stream of equal shapes launches few kernels and returns to Python once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.cache import Cache, Timeline, arrays_of, begin_step, parts_of, set_arrays

Stage = Callable[..., Any]


class Runner:
    """The stages of one model. Sessions share what has been compiled."""

    def __init__(self, model: Any, *, compiled: bool) -> None:
        self._model = model
        self.compiled = compiled
        """Pays on a GPU, where launches cost more than small kernels; on a CPU it would need a C++ compiler."""
        self._stages: dict[Stage, _CompiledStage] = {}

    def __call__(self, stage: Stage, cache: Cache, *inputs: mx.array) -> Any:
        """`stage(model, cache, *inputs)` for one frame; the cache moves on."""
        if not self.compiled:
            return self.plain(stage, cache, *inputs)
        if stage not in self._stages:
            self._stages[stage] = _CompiledStage(self._model, stage)
        return self._stages[stage](cache, *inputs)

    def plain(self, stage: Stage, cache: Cache, *inputs: mx.array) -> Any:
        """The same as written, for any number of frames."""
        with cuda.meetings():
            return stage(self._model, cache, *inputs)


class _CompiledStage:
    """One stage, compiled again whenever shapes change (key/value buffers grow now and then)."""

    def __init__(self, model: Any, stage: Stage) -> None:
        self._model, self._stage = model, stage
        self._structure = Cache()
        self._compiled = mx.compile(self._pure)

    def __call__(self, cache: Cache, *inputs: mx.array) -> Any:
        begin_step(cache, 1)
        self._structure = cache
        result, arrays = self._compiled(arrays_of(cache), *inputs)
        self._structure = Cache()
        for part in parts_of(cache):
            if isinstance(part, Timeline):
                part.position += 1  # the device's count moved inside
        set_arrays(cache, arrays)
        return result

    def _pure(self, arrays: list[mx.array], *inputs: mx.array) -> tuple[Any, list[mx.array]]:
        cache = self._structure.clone()
        set_arrays(cache, arrays)
        with cuda.meetings():
            return self._stage(self._model, cache, *inputs), arrays_of(cache)
