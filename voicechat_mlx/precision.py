"""Which numbers each network is kept and computed in.

Activations follow the weights, so the dtype of a parameter decides the arithmetic. What bfloat16 costs was
measured: language ids stay equal, the talker keeps 77 % of its codes, RNNT ids drift, the codec falls to 28 dB.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import mlx.core as mx

from voicechat_mlx.errors import ConfigError
from voicechat_mlx.names import DTYPES, network_of

ALWAYS_FLOAT32 = re.compile(r"\.(A_log|D|dt_bias)$")
"""The state-space recurrence: its decay is an exponential of an exponential. These are stored in float32 as well."""
BESIDE_FLOAT32 = re.compile(r"\.pre_encode\.conv\.")
"""The subsampling reads mel rows, which are float32: its weights would be cast in every frame."""
MIXTURE = re.compile(r"talker\.(mog_head\.|rvq_embs$)")


@dataclass(frozen=True, kw_only=True)
class Precision:
    """One floating point dtype for each group of networks that tolerates the same."""

    perception_llm: mx.Dtype = mx.float32
    talker: mx.Dtype = mx.float32
    """But for its mixture."""
    mixture: mx.Dtype = mx.float32
    """The talker's mixture head and codebooks, which choose the codes."""
    codec_rnnt: mx.Dtype = mx.float32

    def dtype(self, name: str, stored: mx.Dtype) -> mx.Dtype:
        """The dtype for the parameter of that canonical name: packed weights stay, other integers become int32."""
        if stored == mx.uint32:
            return stored
        if not mx.issubdtype(stored, mx.floating):
            return mx.int32
        if ALWAYS_FLOAT32.search(name) or BESIDE_FLOAT32.search(name):
            return mx.float32
        network = network_of(name)
        if network in ("perception", "llm"):
            return self.perception_llm
        if network == "talker":
            return self.mixture if MIXTURE.match(name) else self.talker
        return self.codec_rnnt


def precision(name: str) -> Precision:
    """One of `DTYPES` → Precision; anything else is a ConfigError.

    `auto`: bfloat16 perception and language model on a GPU, float32 on a CPU (where MLX's bfloat16 is slower).
    `mixed`: these in bfloat16, and of the talker all but the mixture. `bfloat16`: the whole talker as well.
    Codec and RNNT are float32 always.
    """
    on_gpu, bfloat16 = mx.default_device().type == mx.DeviceType.gpu, mx.bfloat16
    choices = {
        "auto": Precision(perception_llm=bfloat16 if on_gpu else mx.float32),
        "float32": Precision(),
        "mixed": Precision(perception_llm=bfloat16, talker=bfloat16),
        "bfloat16": Precision(perception_llm=bfloat16, talker=bfloat16, mixture=bfloat16),
    }
    if not isinstance(name, str) or name not in DTYPES:
        raise ConfigError(f"dtype {name!r} is unknown; choose one of {', '.join(DTYPES)}")
    return choices[name]


def dtype_name(dtype: mx.Dtype) -> str:
    """`mx.bfloat16` → `"bfloat16"`."""
    return str(dtype).removeprefix("mlx.core.")
