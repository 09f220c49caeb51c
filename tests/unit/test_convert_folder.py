"""Where a conversion is written: whole or not at all, taken up after an interruption, never over something else."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_convert import contents
from voicechat_mlx.cli.__main__ import main
from voicechat_mlx.convert import Options, convert, plan_conversion
from voicechat_mlx.convert import folder as module
from voicechat_mlx.errors import OutputError, VoiceChatError

ROOT = Path(__file__).parents[2]
LIMIT = 300_000
KILLED = """
import os, signal, sys
from voicechat_mlx import convert
from voicechat_mlx.convert import writing

turn, made = writing.converted, []

def die_in_the_third_file(unit, tensor):
    made.append(unit)
    files = plan.shards
    if len(made) > len(files[0].units) + len(files[1].units) + 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return turn(unit, tensor)

writing.converted = die_in_the_third_file
plan = convert.plan_conversion(sys.argv[1], convert.Options(bits=4), max_shard_bytes=int(sys.argv[3]))
convert.convert(plan, sys.argv[2])
"""
"""A conversion that is killed, as `kill -9` would, while it writes the third file."""


def plan(source: Path, bits: int | None = 4):
    return plan_conversion(source, Options(bits=bits), max_shard_bytes=LIMIT)


@pytest.fixture
def interrupted(tiny_bf16, tmp_path) -> Path:
    """`tmp_path / "out"`, whose making was killed."""
    out = tmp_path / "out"
    done = subprocess.run([sys.executable, "-c", KILLED, str(tiny_bf16), str(out), str(LIMIT)], cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    return out


def test_a_killed_conversion_leaves_nothing_at_its_place(interrupted) -> None:
    beside = interrupted.with_name(".out.converting")
    assert [path.name for path in interrupted.parent.iterdir()] == [".out.converting"]
    names = [path.name.split("-of-")[0] for path in sorted(beside.iterdir())]
    assert names == [".unfinished.json", "model-00001", "model-00002", "model-00003"]
    assert [path.suffix for path in sorted(beside.glob("model-*"))] == [".safetensors", ".safetensors", ".tmp"]


def test_the_same_command_takes_a_killed_conversion_up_and_ends_with_the_same_bytes(
    interrupted, tiny_bf16, tmp_path, caplog
) -> None:
    beside = interrupted.with_name(".out.converting")
    finished = {path.name: path.stat().st_ino for path in beside.glob("*.safetensors")}
    progress: list[int] = []
    convert(plan(tiny_bf16), interrupted, lambda done, _: progress.append(done))
    assert "taking up an interrupted conversion: 2 of" in caplog.text
    assert finished == {name: (interrupted / name).stat().st_ino for name in finished}
    assert progress[0] > sum(shard.bytes for shard in plan(tiny_bf16).shards[:2])
    assert progress[-1] == plan(tiny_bf16).bytes
    assert contents(interrupted) == contents(convert(plan(tiny_bf16), tmp_path / "whole"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


def test_other_choices_throw_the_leftovers_of_a_killed_conversion_away(interrupted, tiny_bf16, tmp_path) -> None:
    convert(plan(tiny_bf16, 8), interrupted)
    assert contents(interrupted) == contents(convert(plan(tiny_bf16, 8), tmp_path / "whole"))


def test_a_source_that_changed_meanwhile_starts_anew(tiny_bf16, tmp_path) -> None:
    source = Path(shutil.copytree(tiny_bf16, tmp_path / "source"))
    first = module.ResultFolder(tmp_path / "out")
    from voicechat_mlx.convert.plan import fingerprint

    before = fingerprint(plan(source))
    first.begin(before)
    first.add_shard("model.safetensors", lambda place: place.write_bytes(b"1"))
    assert module.ResultFolder(tmp_path / "out").begin(before) == ("model.safetensors",)
    (source / "model.safetensors").touch()
    assert module.ResultFolder(tmp_path / "out").begin(fingerprint(plan(source))) == ()


def test_an_earlier_conversion_is_replaced_only_when_the_new_one_is_whole(tiny_bf16, tmp_path, monkeypatch) -> None:
    out = convert(plan(tiny_bf16), tmp_path / "out")
    before = contents(out)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with (
        monkeypatch.context() as patch,
        pytest.raises(VoiceChatError, match=r"No space left on device\); the same call"),
    ):
        patch.setattr(shutil, "copyfile", fail)
        convert(plan(tiny_bf16, 8), out)
    assert contents(out) == before
    convert(plan(tiny_bf16, 8), out)
    assert contents(out) != before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_empty_folder_may_be_filled(tiny_bf16, tmp_path) -> None:
    (tmp_path / "out").mkdir()
    assert (convert(plan(tiny_bf16), tmp_path / "out") / "SHA256SUMS").is_file()


def test_places_that_hold_something_else_are_refused_and_left_alone(tiny_bf16, tmp_path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "letter.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    own = Path(shutil.copytree(tiny_bf16, tmp_path / "around" / "own"))
    (tmp_path / "around" / "SHA256SUMS").touch()  # the mark of a conversion, which may be replaced
    (tmp_path / "way").symlink_to(own)
    before = contents(tmp_path)
    for name, message in {
        "file": "is not a folder",
        "folder": "holds something else than a converted checkpoint",
        "link": "is not a folder",
        "around/own": "is the source itself",
        "around/own/sub": "is inside the source",
        "around/own/rnnt_tokenizer/sub": "is inside the source|does not exist",
        "way/sub": "is inside the source",
        "around": "holds the source",
        "none/out": "does not exist; make it with: mkdir -p",
    }.items():
        with pytest.raises(OutputError, match=message):
            convert(plan(own), tmp_path / name)
    assert contents(tmp_path) == before


def test_too_full_a_disk_is_refused_with_the_figures(tiny_bf16, tmp_path, monkeypatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(OutputError, match=r"has 0\.00 MB free; 1\.8\d MB will be written"):
        convert(plan(tiny_bf16), tmp_path / "out")


def test_what_the_command_line_refuses_is_one_line_and_exit_code_2(tiny_bf16, tmp_path, capsys) -> None:
    out = str(tmp_path / "out")
    for words, message in (
        (["--group-size", "32"], "--group-size needs --bits"),
        (["--bits", "3"], "invalid choice: 3"),
        (["--quantize", "llm,codec"], "codec cannot be quantised"),
        (["--quantize", ""], "cannot be quantised"),
        (["--dtype", "fp16"], "invalid choice: 'fp16'"),
        (["--tokenizer", out], "is not a folder"),
    ):
        assert main(["convert", str(tiny_bf16), out, *words]) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith("voicechat: ") and captured.err.count("\n") == 1
        assert message in captured.err
    assert list(tmp_path.iterdir()) == []
