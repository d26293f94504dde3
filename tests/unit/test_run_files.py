"""A file that is replaced: the old one or the new one, never a part of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dqnfed_flwr.run_files import private_folder, replacing


def test_the_new_file_has_the_name_only_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def write_half(path: Path, error: BaseException) -> None:
    with replacing(path) as file:
        file.write(b"half")
        raise error


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left"), ValueError("no number"), KeyboardInterrupt()]
)
def test_the_old_file_stays_where_anything_is_raised(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(b"old")
    with pytest.raises(type(error)):
        write_half(path, error)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_asked_for_synced_is_so_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "run.json", []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append((os.fstat(descriptor).st_size, path.exists())))
    with replacing(path) as file:
        file.write(b"new")
    assert synced == []
    path.unlink()
    with replacing(path, sync=True) as file:
        file.write(b"newer")
    assert synced == [(5, False)]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o177])
def test_a_folder_of_results_is_closed_to_others_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    (tmp_path / "mine").mkdir(mode=0o755)
    before = os.umask(umask)
    try:
        private_folder(tmp_path / "mine" / "runs" / "first")
        private_folder(tmp_path / "mine" / "runs" / "first")
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "mine" / "runs", tmp_path / "mine" / "runs" / "first")]
    assert modes == [0o700, 0o700]
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o755


def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_bytes(b"")
    for place in (tmp_path / "runs", tmp_path / "runs" / "first"):
        with pytest.raises(OSError, match=r"exists|Not a directory"):
            private_folder(place)
