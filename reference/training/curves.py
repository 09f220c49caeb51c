"""Loss curves as pictures."""

from __future__ import annotations

from pathlib import Path


def plot_curve(curve: list[dict[str, float]], title: str, path: Path) -> None:
    """Every figure of the curve over the steps, one panel each."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [name for name in (curve[-1] if curve else {}) if name not in ("step", "seconds")]
    if not names:
        return
    figure, panels = pyplot.subplots(len(names), 1, figsize=(8, 2.2 * len(names)), sharex=True, squeeze=False)
    for panel, name in zip(panels[:, 0], names, strict=True):
        points = [(entry["step"], entry[name]) for entry in curve if name in entry]
        panel.plot(*zip(*points, strict=True), linewidth=0.9)
        panel.set_ylabel(name)
        panel.grid(alpha=0.3)
        if all(value > 0 for _, value in points):
            panel.set_yscale("log")
    panels[0, 0].set_title(f"{title}: {curve[-1]['step']:.0f} steps, {curve[-1]['seconds']:.0f} s")
    panels[-1, 0].set_xlabel("step")
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    pyplot.close(figure)
