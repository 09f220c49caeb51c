"""The environment of the program we are measured against, made once in the user's cache folder.

mlx-vlm and mlx-audio are installed without their dependencies, of which a spoken dialogue needs only a few.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "voicechat-mlx-bench"
"""Holds the peer's environment and the checkpoints; safe to delete."""
OWN_PYTHON = "VOICECHAT_BENCH_PEER"
"""Environment variable: a Python that has mlx-vlm already."""
MEASURED = ("mlx-vlm==0.7.10", "mlx-audio==0.6.2")
NEEDED_BY_THEM = (
    "mlx[cpu]==0.32.4" if sys.platform == "linux" else "mlx==0.32.4",
    "transformers>=5.14,<6",
    "numpy>=2.0",
    "scipy>=1.10",
    "pillow>=10.3",
    "requests>=2.31",
    "miniaudio>=1.71",
    "sentencepiece>=0.2",
)


def peer_python() -> Path:
    """The interpreter that can run `peer_mlx_vlm.py`; installs what is missing (about 600 MB) at the first call."""
    if given := os.environ.get(OWN_PYTHON):
        return Path(given)
    folder = CACHE / MEASURED[0].replace("==", "-")
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([*pip, *NEEDED_BY_THEM], check=True)
        subprocess.run([*pip, "--no-deps", *MEASURED], check=True)
        complete.touch()
    return python
