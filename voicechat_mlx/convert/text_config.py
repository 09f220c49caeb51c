"""text_config of a source that lacks it: from the config.json of its language model, checked against the tensors."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from voicechat_mlx.config import MODEL_TYPE, TextConfig
from voicechat_mlx.errors import ConfigError

Shapes = Mapping[str, tuple[int, ...]]
DEFAULTS = "the defaults, which are those of the 11B model"
ALIASES = {
    "mamba_state_dim": "ssm_state_size",
    "mamba_num_groups": "n_groups",
    "rms_norm_eps": "layer_norm_epsilon",
    "attention_head_dim": "head_dim",
}
"""Other spellings that config.json files of this family use → ours; ours wins where both are there."""
LETTERS = {"in_proj": "M", "q_proj": "*", "up_proj": "-"}
"""A projection that only one kind of layer has → the kind's letter."""
LAYER = re.compile(r"llm\.layers\.(\d+)\.mixer\.(\w+)\.weight")


def read_text_config(folder: Path | None) -> tuple[dict[str, Any], str]:
    """The base model's folder → text_config and where it comes from, in words; without config.json the defaults.

    A folder of a VoiceChat checkpoint will do as well. Raises ConfigError when its config.json is something else.
    """
    path = folder / "config.json" if folder else None
    if path is None or not path.is_file():
        return {}, DEFAULTS
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        values = values["text_config"] if values.get("model_type") == MODEL_TYPE else values
        pattern = values["hybrid_override_pattern"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path} describes no Nemotron-H language model; give the folder of the base model") from None
    known = {field.name for field in dataclasses.fields(TextConfig)}
    text = {ALIASES[key]: values[key] for key in ALIASES if values.get(key) is not None}
    text |= {key: values[key] for key in values if key in known and values[key] is not None}
    return text | {"hybrid_override_pattern": pattern}, str(path)


def check_text_config(text: TextConfig, shapes: Shapes, origin: str) -> None:
    """Canonical tensor names and shapes must say what `text` says. Raises ConfigError naming key, tensor and cause."""
    for key, stated, found, tensor in _facts(text, shapes):
        if stated != found:
            raise ConfigError(f"text_config.{key} is {stated} but {tensor} says {found}; {told_from(origin)}")


def told_from(origin: str) -> str:
    """Where text_config came from and what to do when it is wrong."""
    advice = "give --tokenizer the folder of this checkpoint's language model, with its config.json"
    return f"text_config was taken from {origin}: {advice}"


def _facts(text: TextConfig, shapes: Shapes) -> Iterator[tuple[str, Any, Any, str]]:
    """(key, value in text_config, value by the tensors, which tensor) of everything that can be told from shapes."""
    if "embed_tokens.weight" in shapes:
        vocabulary, hidden = shapes["embed_tokens.weight"]
        yield "hidden_size", text.hidden_size, hidden, "embed_tokens.weight"
        yield "vocab_size", text.vocab_size, vocabulary, "embed_tokens.weight"
    letters = {}
    for name in shapes:
        match = LAYER.fullmatch(name)
        if match and match[2] in LETTERS:
            letters[int(match[1])] = LETTERS[match[2]]
    pattern = "".join(letters[index] for index in sorted(letters))
    yield "hybrid_override_pattern", text.hybrid_override_pattern, pattern, "the kind of each layer"
    queries, keys = (heads * text.head_dim for heads in (text.num_attention_heads, text.num_key_value_heads))
    sizes = {
        "up_proj.weight": (0, "intermediate_size", text.intermediate_size),
        "A_log": (0, "mamba_num_heads", text.mamba_num_heads),
        "out_proj.weight": (1, "mamba_num_heads · mamba_head_dim", text.mamba_width),
        "conv1d.bias": (0, "mamba width + 2 · n_groups · ssm_state_size", text.mamba_conv_width),
        "q_proj.weight": (0, "num_attention_heads · head_dim", queries),
        "k_proj.weight": (0, "num_key_value_heads · head_dim", keys),
    }
    for index in sorted(letters):
        for part, (axis, key, stated) in sizes.items():
            name = f"llm.layers.{index}.mixer.{part}"
            if name in shapes:
                yield key, stated, shapes[name][axis], name
