"""What every section of config.json uses to refuse: two checks, and the name of the file at fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from voicechat_mlx.errors import ConfigError


def require(condition: bool, message: str) -> None:
    """Raise ConfigError(message) unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def divides(where: str, config: object, divisor: str, dividend: str) -> None:
    """Both fields must be positive and the first divide the second."""
    low, high = getattr(config, divisor), getattr(config, dividend)
    require(low > 0 and high > 0 and high % low == 0, f"{where}.{divisor} {low} must divide {dividend} {high}")


@contextmanager
def faults_named(path: Path) -> Iterator[None]:
    """A ConfigError from within names `path` in place of a bare config.json; a value too deep to be shown is one."""
    try:
        yield
    except ConfigError as error:
        message = str(error)
        if str(path) not in message:
            message = f"{path}: {message.removeprefix('config.json: ')}"
        raise ConfigError(message) from None
    except RecursionError:
        raise ConfigError(f"{path} holds lists or objects nested too deeply; download the checkpoint again") from None
