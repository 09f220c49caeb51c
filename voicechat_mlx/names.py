"""Names: how the tensors of a published checkpoint are called inside the model.

The rules are data. A name that is canonical already stays as it is, so applying them twice changes nothing.
"""

from __future__ import annotations

DTYPES = ("auto", "float32", "mixed", "bfloat16")
"""What people call a `precision`."""
SINGLE_NAMES = {
    "tts_model._control_codes": "control_codes",
    "tts_model.codec_silence_tokens": "codec_silence_tokens",
    "tts_model.audio_prompt_latents.Aria": "audio_prompt_latent",
}
PREFIXES = {
    "tts_model.tts_model.": "talker.",
    "tts_model.audio_codec.prvq._variance_list.": "codec.prvq.variance_list.",
    "tts_model.audio_codec.": "codec.",
    "stt_model.": "",
}
"""Checkpoint prefix → canonical prefix; the first that fits is used."""
NOT_NEEDED = ("stt_model.perception.preprocessor.", "tts_model.tts_model.audio_prompt_projection_W")
"""Known and left out: the frontend computes its own window and filters, and the voice prompt is already projected."""
NETWORKS = {
    "perception.": "perception",
    "rnnt_": "rnnt",
    "llm.": "llm",
    "embed_tokens.": "llm",
    "lm_head.": "llm",
    "function_head.": "llm",
    "talker.": "talker",
    "audio_prompt_latent": "talker",
    "codec": "codec",
    "control_codes": "codec",
}
"""Canonical prefix → the network that owns the tensor."""
OTHER = "other"


def canonical_name(name: str) -> str | None:
    """A tensor or module name of the checkpoint → its name in the model; None: known and not needed."""
    if name.startswith(NOT_NEEDED):
        return None
    if name in SINGLE_NAMES:
        return SINGLE_NAMES[name]
    for prefix, replacement in PREFIXES.items():
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def published_name(name: str) -> str:
    """The checkpoint's spelling of a canonical name: the inverse of `canonical_name`."""
    for published, canonical in SINGLE_NAMES.items():
        if name == canonical:
            return published
    for prefix, canonical in PREFIXES.items():
        if "._" not in prefix and name.startswith(canonical):
            return prefix + name.removeprefix(canonical)
    return name


def network_of(name: str) -> str:
    """A canonical name → `perception`, `rnnt`, `llm`, `talker`, `codec`, or `other`."""
    return next((network for prefix, network in NETWORKS.items() if name.startswith(prefix)), OTHER)
