"""What a conversion will write, decided from headers alone: every tensor's name, type, shape and file.

So a dry run can show it, an interrupted run can be taken up again, and no shard has to be held in memory.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx import nn

from voicechat_mlx.config import Quantization
from voicechat_mlx.convert.shards import Shard, Unit, cut_into_shards
from voicechat_mlx.convert.source import Source
from voicechat_mlx.errors import CheckpointError, ConfigError
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.names import canonical_name, network_of, published_name
from voicechat_mlx.precision import ALWAYS_FLOAT32
from voicechat_mlx.safetensors_header import TensorHeader
from voicechat_mlx.weights import MODULE_QUANTISED_SUFFIXES, Report, survey

DTYPES = {"bf16": mx.bfloat16, "fp32": mx.float32}
NETWORKS = ("llm", "talker", "perception")
"""Networks that may be quantised. RNNT and codec are small and lose too much."""
STAYS_DENSE = re.compile(r"talker\.mog_head\.(proj_mus|proj_logs)")
"""Linear layers that are not: of `proj_mus` single rows are read, and `proj_logs` is one row, an exponent."""
KEPT_FOR_OTHERS = "tts_model.tts_model.audio_prompt_projection_W"
"""Not needed here, but other programs for this layout refuse a checkpoint without it."""
SPELLING = {mx.bfloat16: "BF16", mx.float32: "F32", mx.int32: "I32", mx.uint32: "U32"}
COUNTED = re.compile(r"\d+ tensors? (is|are) (missing|unexpected): ")
"""Lines of a survey's problems that repeat `missing` and `unexpected`, shortened."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the caller chose."""

    dtype: str = "bf16"
    """Of every floating point number that is not quantised, and of scales."""
    bits: int | None = None
    """None: nothing more is quantised than the source is."""
    group_size: int = 64
    networks: tuple[str, ...] = ("llm",)
    """Which are quantised."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype {self.dtype!r} is unknown; choose one of {', '.join(DTYPES)}")
        if self.bits not in (None, 4, 8):
            raise ConfigError(f"{self.bits} bits cannot be chosen; choose 4 or 8")
        if self.group_size not in (32, 64, 128):
            raise ConfigError(f"a group size of {self.group_size} cannot be chosen; choose 32, 64 or 128")
        unknown = [name for name in self.networks if name not in NETWORKS]
        if unknown or not self.networks:
            raise ConfigError(
                f"{', '.join(unknown) or 'nothing'} cannot be quantised; choose from {', '.join(NETWORKS)}"
            )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A whole conversion."""

    source: Source
    options: Options
    shards: tuple[Shard, ...]
    quantization: Quantization | None
    """Module paths as published."""
    permuted: int
    """Kernels that were in torch's order."""
    left_dense: tuple[str, ...] = ()
    """Modules that were to be quantised but whose width is no multiple of the group size."""
    left_out: tuple[str, ...] = ()
    """Tensors of the source that no program needs."""
    report: Report = field(repr=False)

    @property
    def bytes(self) -> int:
        """Of all weights."""
        return sum(shard.bytes for shard in self.shards)

    def config_json(self) -> str:
        """config.json of the result."""
        values = {key: value for key, value in self.source.values.items() if key not in _MAPS}
        if self.quantization:
            values |= dict.fromkeys(_MAPS, quantization_map(self.quantization))
        return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


_MAPS = ("quantization", "quantization_config")


def make_plan(source: Source, options: Options, max_shard_bytes: int) -> Plan:
    """Raises CheckpointError naming every tensor that cannot be placed. Reads no tensor."""
    tensors, model = source.tensors(), VoiceChat(source.config)
    report = survey(model, tensors, source.config)
    if report.problems:
        raise CheckpointError(f"{source.checkpoint.folder} cannot be converted: {'; '.join(_problems(report))}")
    packings, left_dense = _packings(model, report, options)
    units = [
        unit
        for name, tensor in sorted(tensors.items(), key=lambda item: _output_name(item[0]))
        if (unit := _unit(name, tensor, report, packings, DTYPES[options.dtype]))
    ]
    modules = {published_name(path): packing for path, packing in sorted({**report.quantised, **packings}.items())}
    given = source.config.quantization or Quantization()
    group_size, bits = (options.group_size, options.bits) if options.bits else (given.group_size, given.bits)
    return Plan(
        source=source,
        options=options,
        shards=cut_into_shards(units, max_shard_bytes),
        quantization=Quantization(group_size=group_size, bits=bits, modules=modules) if modules else None,
        permuted=len(report.permutations),
        left_dense=left_dense,
        left_out=tuple(name for name in report.not_needed if name != KEPT_FOR_OTHERS),
        report=report,
    )


def quantization_map(quantization: Quantization) -> dict[str, Any]:
    """The map as config.json spells it."""
    modules = {path: {"group_size": size, "bits": bits} for path, (size, bits) in quantization.modules.items()}
    return {"group_size": quantization.group_size, "bits": quantization.bits, **modules}


def _output_name(name: str) -> str:
    """A tensor's name in the result."""
    canonical = canonical_name(name)
    return name if canonical is None else published_name(canonical)


def _problems(report: Report) -> list[str]:
    """One part for each kind of problem, every tensor named."""
    lines = [line for line in report.problems if not COUNTED.match(line)]
    for what, names in (("missing", report.missing), ("not of this model", report.unexpected)):
        if names:
            lines.append(f"{what}: {', '.join(names)}")
    return lines


def _packings(model: nn.Module, report: Report, options: Options) -> tuple[dict[str, tuple[int, int]], tuple[str, ...]]:
    """Canonical path → (group_size, bits) of the modules to quantise now, and those whose width forbids it."""
    if options.bits is None:
        return {}, ()
    wanted, left_dense = (options.group_size, options.bits), []
    packings: dict[str, tuple[int, int]] = {}
    for path, module in model.named_modules():
        if not hasattr(module, "to_quantized") or network_of(f"{path}.weight") not in options.networks:
            continue
        if path in report.quantised:
            _require_same(path, report.quantised[path], wanted)
        elif _may_be_packed(path, module):
            if module.weight.shape[-1] % options.group_size:
                left_dense.append(published_name(path))
            else:
                packings[path] = wanted
    return packings, tuple(left_dense)


def _may_be_packed(path: str, module: nn.Module) -> bool:
    """Linear layers, and of the embeddings only the language model's; the talker's are tiny."""
    return not STAYS_DENSE.fullmatch(path) and (isinstance(module, nn.Linear) or path == "embed_tokens")


def _require_same(path: str, found: tuple[int, int], wanted: tuple[int, int]) -> None:
    """Quantising what is quantised already would round twice."""
    if found != wanted:
        stored, other = (f"{bits} bits in groups of {size}" for size, bits in (found, wanted))
        raise CheckpointError(
            f"{published_name(path)} is quantised already, in {stored}; to get {other} convert the original weights"
        )


def _unit(
    name: str, tensor: mx.array, report: Report, packings: Mapping[str, tuple[int, int]], dtype: mx.Dtype
) -> Unit | None:
    """What becomes of one tensor; None when it is left out."""
    output, canonical = _output_name(name), canonical_name(name)
    if canonical is None:
        kept = Unit(source=name, outputs={output: TensorHeader(dtype=SPELLING[dtype], shape=tensor.shape)}, dtype=dtype)
        return kept if name == KEPT_FOR_OTHERS else None
    module, _, leaf = canonical.rpartition(".")
    if module in packings and leaf == "weight":
        outputs = _packed(published_name(module), tensor.shape, packings[module], SPELLING[dtype])
        return Unit(source=name, outputs=outputs, dtype=dtype, packing=packings[module])
    axes = report.permutations.get(canonical)
    shape = tuple(tensor.shape[axis] for axis in axes) if axes else tensor.shape
    kind = _stored_dtype(canonical, tensor.dtype, dtype)
    return Unit(source=name, outputs={output: TensorHeader(dtype=SPELLING[kind], shape=shape)}, dtype=kind, axes=axes)


def _stored_dtype(name: str, found: mx.Dtype, chosen: mx.Dtype) -> mx.Dtype:
    """Packed weights stay, other integers are 32-bit, exponents of the recurrence keep float32."""
    if found == mx.uint32:
        return found
    if not mx.issubdtype(found, mx.floating):
        return mx.int32
    return mx.float32 if ALWAYS_FLOAT32.search(name) else chosen


def _packed(path: str, shape: Sequence[int], packing: tuple[int, int], spelling: str) -> dict[str, TensorHeader]:
    (rows, columns), (group_size, bits) = shape, packing
    parts = {f"{path}.weight": TensorHeader(dtype="U32", shape=(rows, columns * bits // 32))}
    for suffix in MODULE_QUANTISED_SUFFIXES:
        parts[path + suffix] = TensorHeader(dtype=spelling, shape=(rows, columns // group_size))
    return parts


def fingerprint(plan: Plan) -> str:
    """What two runs must have in common for the second to take up the first: source files, choices, result."""
    files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in plan.source.checkpoint.headers]
    shards = [(shard.file, sorted(shard.tensors)) for shard in plan.shards]
    return json.dumps([files, dataclasses.asdict(plan.options), plan.config_json(), shards], ensure_ascii=False)
