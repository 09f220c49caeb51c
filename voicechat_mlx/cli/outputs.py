"""Where a command may write, checked before the model is loaded, and how it writes JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from voicechat_mlx.errors import OutputError
from voicechat_mlx.files import check_output

ENDINGS = {"--output-audio": ".wav", "--output-file": ".wav", "--plot": ".png", "--output": ".safetensors"}
"""Options that write one format only → the ending that says so; a name without an ending will do as well."""


def check_outputs(
    places: Mapping[str, str | None], question: str | None = None, question_option: str = "--audio"
) -> None:
    """Every option's output path must be writable, named once, and end as its format does. Raises OutputError."""
    taken = {Path(os.path.realpath(question)): question_option} if question else {}
    for option, place in places.items():
        if place is None:
            continue
        target = check_output(place)
        if target in taken and not target.is_char_device():
            raise OutputError(f"{option} and {taken[target]} both name {place}; choose another name for one of them")
        taken[target] = option
        ending, expected = Path(place).suffix, ENDINGS.get(option)
        if expected and ending and ending.lower() != expected and not target.is_fifo():
            raise OutputError(f"{option} {place} would not be a {ending} file; end its name in {expected}")


def as_json(values: Mapping[str, Any]) -> str:
    """An object with one key a line."""
    lines = (f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def check_model_is_kept(places: Mapping[str, str | None], model: str | None) -> None:
    """No output may become a file of the checkpoint in use (None: the bundled one). Imports MLX. Raises OutputError."""
    for option, place in places.items():
        if place is not None and _belongs_to(model, check_output(place)):
            raise OutputError(f"{option} {place} would be a file of the model itself; choose another name")


def _belongs_to(model: str | None, target: Path) -> bool:
    """Whether a checkpoint's folder has this file, perhaps behind a link, or would take it for one of its own."""
    from voicechat_mlx.checkpoint import BUNDLED, HUB_FILES

    folder = BUNDLED if model is None else Path(os.path.expanduser(model))
    if not os.path.isdir(folder):  # a Hub id: its files are not known yet
        return False
    for pattern in map(Path, HUB_FILES):
        inside = Path(os.path.realpath(folder)) / pattern.parent
        if target.parent == inside and fnmatch(target.name, pattern.name):
            return True
        if any(target == Path(os.path.realpath(file)) for file in inside.glob(pattern.name)):
            return True
    return False
