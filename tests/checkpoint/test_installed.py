"""The wheel, installed into an environment of its own: the bundled model answers from any folder.

The environment borrows the dependencies of the one that runs the tests, so that no network is needed, but not this
checkout: what answers is what the wheel holds.
"""

from __future__ import annotations

import os
import re
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NANO = ROOT / "fixtures" / "voicechat-nano"
LARGEST_WHEEL = 28_000_000


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), folder=ROOT)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of the environment."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", str(folder), folder=folder)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text("\n".join(site.getsitepackages()) + "\n", encoding="utf-8")
    install = ["--python", str(folder / "bin" / "python"), "install", "--no-deps", "--no-index", "--ignore-installed"]
    run(sys.executable, "-m", "pip", *install, str(wheel), folder=folder)
    return folder / "bin"


def run(*words: str, folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(words, capture_output=True, text=True, encoding="utf-8", cwd=folder, env=environment)
    assert done.returncode == code, done.stderr or done.stdout
    return done


def test_the_wheel_holds_the_bundled_model_and_no_other_checkpoint(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        bundled = {name for name in archive.namelist() if name.startswith("voicechat_mlx/bundled/")}
        weights = archive.read("voicechat_mlx/bundled/voicechat-nano/model.safetensors")
    files = {str(path.relative_to(NANO)) for path in NANO.rglob("*") if path.is_file()}
    assert files >= {"config.json", "model.safetensors", "tokenizer.json", "rnnt_tokenizer/vocab.json", "README.md"}
    assert bundled == {
        f"voicechat_mlx/bundled/{file}" for file in ("question.wav", *(f"voicechat-nano/{f}" for f in files))
    }
    assert weights == (NANO / "model.safetensors").read_bytes()
    assert wheel.stat().st_size < LARGEST_WHEEL


def test_installed_it_answers_the_bundled_question_from_another_folder(programs: Path, tmp_path: Path) -> None:
    """The command itself says where the question lies."""
    voicechat = str(programs / "voicechat")
    told = run(voicechat, "generate", "--output-audio", "a.wav", folder=tmp_path, code=2).stderr
    found = re.search(r"to try it out: --audio (.*?)\)", told)
    assert found is not None, told
    question = Path(found[1])
    assert programs.parent in question.parents, "the package must be the installed one"
    done = run(voicechat, "generate", "--audio", str(question), "--output-audio", "answer.wav", folder=tmp_path)
    assert done.stdout == "[user] what is the capital of france\nThe capital of France is Paris.\n"
    assert done.stderr == ""
    assert (tmp_path / "answer.wav").stat().st_size > 100_000


def test_installed_it_loads_the_model_of_the_wheel(programs: Path, tmp_path: Path) -> None:
    code = "import voicechat_mlx.checkpoint as c; print(c.BUNDLED); assert c.Checkpoint.open().is_bundled"
    folder = Path(run(str(programs / "python"), "-c", code, folder=tmp_path).stdout.strip())
    assert programs.parent in folder.parents and folder.name == "voicechat-nano"
