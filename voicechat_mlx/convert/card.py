"""README.md of a converted checkpoint: what is in the folder, so that converting again writes the same words."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from voicechat_mlx.checkpoint import BASE_MODEL
from voicechat_mlx.convert.plan import Plan
from voicechat_mlx.convert.shards import tensor_bytes

DTYPE_WORDS = {"BF16": "bfloat16", "F32": "float32", "I32": "int32", "U32": "packed"}


def model_card(plan: Plan) -> str:
    """The card, Markdown with the header that model hubs read."""
    return "\n".join(_lines(plan)) + "\n"


def quantised_kinds(plan: Plan) -> dict[tuple[int, int], list[str]]:
    """(group_size, bits) → published paths of the modules that are packed so."""
    kinds: dict[tuple[int, int], list[str]] = defaultdict(list)
    for path, kind in (plan.quantization.modules if plan.quantization else {}).items():
        kinds[kind].append(path)
    return dict(kinds)


def stored_bytes(plan: Plan) -> dict[str, int]:
    """Type of number → bytes."""
    sizes: Counter[str] = Counter()
    for shard in plan.shards:
        for unit in shard.units:
            for tensor in unit.outputs.values():
                sizes[DTYPE_WORDS[tensor.dtype]] += tensor_bytes(tensor)
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _lines(plan: Plan) -> Iterator[str]:
    config = plan.source.config
    text, tts, codec = config.text_config, config.tts_config, config.codec_config
    encoder = config.audio_config.encoder
    tags = ["mlx", "speech", "duplex"] + (["quantised"] if plan.quantization else [])
    yield from ("---", "library_name: mlx", "license: other", "tags:", *(f"- {tag}" for tag in tags), "---", "")
    yield "# NemotronLabs VoiceChat for MLX"
    yield ""
    yield f"A full-duplex speech model: {config.input_sample_rate} Hz sound goes in; a transcript, text and"
    yield f"{config.output_sample_rate} Hz speech come out. Converted by `voicechat convert`; the weights keep the"
    yield f"licence of their source. The text tokenizer is that of {BASE_MODEL}."
    yield ""
    yield "    voicechat generate -m FOLDER --audio question.wav --output-audio answer.wav"
    yield ""
    yield "| network | what it is | parameters |"
    yield "| --- | --- | ---: |"
    about = {
        "perception": f"FastConformer, {encoder.n_layers} layers of width {encoder.d_model}",
        "rnnt": f"transcript branch, {config.audio_config.decoder.vocab_size} pieces",
        "llm": f"Nemotron-H, {text.num_hidden_layers} layers of width {text.hidden_size}, two heads",
        "talker": f"EAR-TTS, {tts.num_hidden_layers} layers of width {tts.hidden_size}",
        "codec": f"{codec.num_quantizers} codes for every {codec.samples_per_frame} samples",
    }
    for network, what in about.items():
        yield f"| {network} | {what} | {plan.report.networks[network].parameters:,} |"
    yield ""
    yield "## Precision"
    yield ""
    for (group_size, bits), paths in quantised_kinds(plan).items():
        yield f"- {len(paths)} modules in {bits} bits, groups of {group_size}; config.json names them all"
    for kind, size in stored_bytes(plan).items():
        yield f"- {size:,} bytes of {kind} numbers"
    yield ""
    yield "Kernels are in MLX's order (channels last). `sha256sum -c SHA256SUMS` checks the files."
