"""Settings files and command lines, the same for every step.

A step's settings are a frozen dataclass that a TOML file fills: settings/full/STEP.toml; settings/smoke, everything
tiny; settings/trial, the full sizes for a moment, to see that they run. Unknown or missing keys are errors that name
them.
"""

from __future__ import annotations

import argparse
import dataclasses
import tomllib
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

SETTINGS = Path(__file__).parent / "settings"
S = TypeVar("S")


def read_settings(kind: type[S], path: Path) -> S:
    """A TOML file → settings. Raises ValueError naming the key that is unknown, missing or of the wrong type."""
    return _fill(kind, tomllib.loads(path.read_text(encoding="utf-8")), path.name)


def _fill(kind: type[S], values: dict[str, Any], where: str) -> S:
    assert dataclasses.is_dataclass(kind)
    types = get_type_hints(kind)
    names = {field.name for field in dataclasses.fields(kind)}
    required = {field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING}
    for key in sorted(values.keys() - names):
        raise ValueError(f"{where}: {key} is unknown; it may hold {', '.join(sorted(names))}")
    for key in sorted(required - values.keys()):
        raise ValueError(f"{where}: {key} is missing")
    filled: dict[str, Any] = {}
    for key, value in values.items():
        if dataclasses.is_dataclass(types[key]):
            value = _fill(types[key], value, f"{where}: {key}")
        elif types[key] is float and isinstance(value, int):
            value = float(value)
        elif isinstance(value, list):
            value = tuple(tuple(item) if isinstance(item, list) else item for item in value)
        elif not isinstance(value, types[key]):
            raise ValueError(f"{where}: {key} must be {types[key].__name__}, found {value!r}")
        filled[key] = value
    result: S = kind(**filled)
    return result


def step_parser(step: str, description: str | None) -> argparse.ArgumentParser:
    """What every step's command line has; `python -m reference.training.STEP --help` prints it."""
    parser = argparse.ArgumentParser(
        prog=f"python -m reference.training.{step}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--work", type=Path, required=True, help="folder of the whole run; each step has a folder in it"
    )
    parser.add_argument("--settings", choices=("full", "smoke", "trial"), default="full", help="which settings file")
    parser.add_argument("--settings-file", type=Path, help="another settings file instead")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def training_parser(step: str, description: str | None) -> argparse.ArgumentParser:
    """The same, for steps that train."""
    parser = step_parser(step, description)
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto: a GPU where there is one")
    parser.add_argument("--graphs", action=argparse.BooleanOptionalAction, default=True, help="CUDA graphs, on a GPU")
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=True, help="torch.compile, on a GPU"
    )
    parser.add_argument("--time-scale", type=float, default=1.0, help="factor on the settings' time limit")
    parser.add_argument("--deadline", type=float, help="Unix time at which to save the state and stop")
    parser.add_argument("--final", action="store_true", help="end the schedule before the deadline: no call follows")
    parser.add_argument("--again", action="store_true", help="train once more, from the finished weights")
    return parser


def settings_of(arguments: argparse.Namespace, step: str, kind: type[S]) -> S:
    """The settings that a step's command line names."""
    path: Path = arguments.settings_file or SETTINGS / arguments.settings / f"{step}.toml"
    return read_settings(kind, path)
