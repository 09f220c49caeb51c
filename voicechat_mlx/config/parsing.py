"""Fill frozen dataclasses from JSON, strictly: wrong types and values that are not implemented are errors.

`only(...)` marks a field that the file may name but whose other values would change the maths; `within(...)` of
`ranges` one whose numbers are not what its type says: whole numbers are sizes, floats are finite.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

from voicechat_mlx.config.ranges import out_of_range
from voicechat_mlx.errors import ConfigError


def only(*values: Any) -> Any:
    """A dataclass field that accepts only these values; the first is the default."""
    return dataclasses.field(default=values[0], metadata={"only": values})


def parse(cls: type, values: dict[str, Any], path: str, unknown: dict[str, Any]) -> dict[str, Any]:
    """Constructor arguments for `cls` from a JSON object at dotted `path`; strangers go to `unknown`."""
    if not isinstance(values, dict):
        raise ConfigError(f"config.json: {path.rstrip('.')} must be an object, found {type(values).__name__}")
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    known: dict[str, Any] = {}
    for key, value in values.items():
        if key not in fields:
            unknown[path + key] = value
            continue
        known[key] = _convert(hints[key], value, path + key, unknown)
        allowed = fields[key].metadata.get("only")
        if allowed is not None and known[key] not in allowed:
            names = " or ".join(repr(choice) for choice in allowed)
            raise ConfigError(f"config.json: {path}{key} is {value!r}; only {names} is implemented")
        trouble = out_of_range(fields[key].metadata, known[key])
        if trouble:
            raise ConfigError(f"config.json: {path}{key} {trouble}")
    return known


def _convert(hint: Any, value: Any, path: str, unknown: dict[str, Any]) -> Any:
    """One JSON value → the field's type, or ConfigError naming the dotted path."""
    if isinstance(hint, types.UnionType):
        if value is None and type(None) in typing.get_args(hint):
            return None
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return hint(**parse(hint, value, path + ".", unknown))
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"config.json: {path} must be a list, found {value!r}")
        item = typing.get_args(hint)[0]
        return tuple(_convert(item, entry, f"{path}[{index}]", unknown) for index, entry in enumerate(value))
    if hint is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            raise ConfigError(f"config.json: {path} must be a number, found {value!r}") from None
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(hint, type) and isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise ConfigError(f"config.json: {path} must be {getattr(hint, '__name__', hint)}, found {value!r}")
