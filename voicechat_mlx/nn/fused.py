"""What residual blocks are made of: a norm, a matrix product, an activation and a sum, as one step.

Per-frame steps on a GPU are bound by launches, and each of these is one launch of `cuda.product` there. Everywhere
else, and for more rows than a frame has, it is the expression that its docstring says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx import nn

from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.linear import LinearGroup
from voicechat_mlx.nn.norms import GroupedRMSNorm, OffsetRMSNorm

Activation = Callable[[mx.array], mx.array]
Layer = nn.Module | LinearGroup


def fused(
    x: mx.array,
    layer: Layer,
    *,
    norm: nn.Module | None = None,
    after_norm: Activation | None = None,
    activation: Activation | None = None,
    residual: mx.array | None = None,
    half: bool = False,
) -> mx.array:
    """residual + activation(layer(after_norm(norm(x)))), each but the layer optional; `half` adds half of it.

    x (…, K) → (…, N), or (…, N / 2) where the activation joins two halves. `after_norm` is SiLU or nothing.
    """
    if weights := _for_kernel(x, layer, norm):
        normed = _norm(norm, activated=after_norm is not None) if norm else None
        return cuda.product(x, weights, norm=normed, activation=activation, residual=residual, half=half)[0]
    x = norm(cuda.settled(x)) if norm else cuda.settled(x)
    y = layer(after_norm(x) if after_norm else x)
    y = activation(y) if activation else y
    if residual is None:
        return y
    residual = cuda.settled(residual)
    return residual + 0.5 * y if half else residual + y


def fused_after(
    x: mx.array,
    y: mx.array,
    post: OffsetRMSNorm | None,
    layer: Layer,
    *,
    norm: nn.Module,
    activation: Activation | None = None,
    keeps_normed: bool = False,
) -> tuple[mx.array, mx.array]:
    """s = x + post(y), or x + y, and activation(layer(norm(s))): (…, K) and (…, N). One row of y may serve all of x.

    With `keeps_normed`, norm(s) in the place of s.
    """
    if weights := _for_kernel(x, layer, norm):
        addend = cuda.Addend(y, post.scale, post.eps) if post else cuda.Addend(y)
        out, entered = cuda.product(
            x, weights, norm=_norm(norm), before=addend, activation=activation, keeps_normed=keeps_normed
        )
        return entered, out
    x, y = cuda.settled(x), cuda.settled(y)
    total = x + (post(y) if post else y)
    normed = norm(total)
    out = layer(normed)
    return normed if keeps_normed else total, activation(out) if activation else out


def normed(x: mx.array, norm: nn.LayerNorm) -> mx.array:
    """norm(x): (…, K) → the same shape. In a chain it is left to the product that comes first behind it."""
    return cuda.later(x, _norm(norm), norm) if cuda.recording() else norm(cuda.settled(x))


def _for_kernel(x: mx.array, layer: Layer, norm: nn.Module | None) -> cuda.Weights | None:
    """The layer's weights, where the kernel takes them, the norm and such inputs."""
    if not cuda.available():
        return None
    if isinstance(norm, GroupedRMSNorm) and x.shape[-1] * x.dtype.size % (16 * norm.groups):
        return None  # it reads 16 bytes at a time
    weights = layer.weights if isinstance(layer, LinearGroup) else cuda.weights_of(layer)
    return weights if weights is not None and cuda.suits(x, weights) else None


def _norm(norm: Any, *, activated: bool = False) -> cuda.Norm:
    """The norm as the kernel wants it."""
    if isinstance(norm, OffsetRMSNorm):
        return cuda.Norm(1, norm.scale, None, norm.eps, activated=activated)
    if isinstance(norm, GroupedRMSNorm):
        return cuda.Norm(3, norm.weight, None, norm.eps, norm.groups, activated=activated)
    if isinstance(norm, nn.LayerNorm):
        return cuda.Norm(2, norm.weight, norm.bias, norm.eps, activated=activated)
    return cuda.Norm(1, norm.weight, None, norm.eps, activated=activated)
