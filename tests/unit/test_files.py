"""Output files appear whole or not at all."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from voicechat_mlx.errors import OutputError, VoiceChatError
from voicechat_mlx.files import check_output, replacing


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_only_when_its_block_ends(tmp_path) -> None:
    with replacing(tmp_path / "new.txt") as place:
        place.write_text("whole")
        assert not (tmp_path / "new.txt").exists()
        assert place.parent == tmp_path
    assert (tmp_path / "new.txt").read_text() == "whole"
    assert names(tmp_path) == ["new.txt"]


def test_a_failure_midway_keeps_the_old_file_and_leaves_nothing_beside_it(tmp_path) -> None:
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "a.txt") as place:
        place.write_text("half")
        raise KeyboardInterrupt
    assert (tmp_path / "a.txt").read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_full_disk_is_one_line_that_names_the_file(tmp_path) -> None:
    with (
        pytest.raises(VoiceChatError, match=r"a\.txt was not written: No space left") as caught,
        replacing(tmp_path / "a.txt"),
    ):
        raise OSError(28, "No space left on device")
    assert not isinstance(caught.value, OutputError)
    assert names(tmp_path) == []


def test_new_files_get_the_usual_permissions_and_old_ones_keep_theirs(tmp_path) -> None:
    umask = os.umask(0o027)
    try:
        with replacing(tmp_path / "new"):
            pass
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    (tmp_path / "new").chmod(0o604)
    with replacing(tmp_path / "new"):
        pass
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o604


def test_a_link_stays_a_link_and_its_target_is_replaced(tmp_path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with replacing(tmp_path / "link") as place:
        place.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_a_device_is_written_and_not_replaced() -> None:
    with replacing(os.devnull) as place:
        place.write_bytes(b"gone")
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize("name", ["/dev/fd/{}", "/proc/self/fd/{}", "/proc/{process}/fd/{}"])
def test_a_pipe_gets_the_whole_content_when_the_block_ends_and_stays_open(name) -> None:
    reader, writer = os.pipe()
    path = name.format(writer, process=os.getpid())
    if not os.path.exists(path):
        pytest.skip(f"this system has no {name}")
    with replacing(path) as place, place.open("w+b") as file:  # back and forth, as a pipe itself cannot be written
        file.write(b"whale")
        file.seek(2)
        file.write(b"o")
    os.write(writer, b".")
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"whole."
    assert not place.exists()


def test_a_failure_midway_sends_nothing_into_a_pipe(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "pipe") as place:
        place.write_text("half")
        raise KeyboardInterrupt
    assert os.read(reader, 9) == b""
    os.close(reader)
    assert names(tmp_path) == ["pipe"] and not place.exists()


def test_an_open_file_is_written_on_where_it_stands(tmp_path) -> None:
    with (tmp_path / "a.txt").open("wb", buffering=0) as file:
        file.write(b"first ")
        with replacing(f"/dev/fd/{file.fileno()}") as place:
            place.write_text("second ")
        file.write(b"third")
    assert (tmp_path / "a.txt").read_text() == "first second third"


def test_what_is_not_open_for_writing_is_refused(tmp_path) -> None:
    (tmp_path / "a.txt").touch()
    with (tmp_path / "a.txt").open("rb") as file, pytest.raises(OutputError, match="is open for reading only"):
        closed = file.fileno()
        check_output(f"/dev/fd/{closed}")
    for number in (closed, 9**30):
        with pytest.raises(OutputError, match="is not open"):
            check_output(f"/dev/fd/{number}")


def test_a_socket_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as there:
        there.bind("there")
        with pytest.raises(OutputError, match="is a socket"):
            check_output("there")


def test_places_that_cannot_be_written_are_refused(tmp_path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for place, message in [
        ("", "the name of an output file is empty"),
        (tmp_path, "is a folder"),
        (tmp_path / "none" / "a", "does not exist; make it with"),
        (tmp_path / "file" / "a", "does not exist"),
        (tmp_path / ("x" * 300), "cannot be an output file"),
        (tmp_path / "loop", "cannot be an output file"),
        ("a\0b", "cannot be an output file"),
    ]:
        with pytest.raises(OutputError, match=message):
            check_output(place)
    assert names(tmp_path) == ["file", "loop"]


@pytest.mark.parametrize(("locked", "message"), [("file", "is write-protected"), ("folder", "is not writable")])
def test_missing_permissions_are_refused(tmp_path, monkeypatch, locked, message) -> None:
    path = tmp_path / "a.txt"
    path.touch()
    closed = path if locked == "file" else tmp_path
    monkeypatch.setattr(os, "access", lambda place, mode: Path(place) != closed)  # the administrator may write anywhere
    with pytest.raises(OutputError, match=message):
        check_output(path)
