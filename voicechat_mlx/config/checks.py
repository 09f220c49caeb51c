"""Two checks that every section of config.json uses."""

from __future__ import annotations

from voicechat_mlx.errors import ConfigError


def require(condition: bool, message: str) -> None:
    """Raise ConfigError(message) unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def divides(where: str, config: object, divisor: str, dividend: str) -> None:
    """Both fields must be positive and the first divide the second."""
    low, high = getattr(config, divisor), getattr(config, dividend)
    require(low > 0 and high > 0 and high % low == 0, f"{where}.{divisor} {low} must divide {dividend} {high}")
