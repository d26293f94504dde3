"""Checkpoints: all or nothing on disk, and no other run's taken for one's own."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.config import KNOWN, Settings
from dqnfed_flwr.errors import CheckpointError
from dqnfed_flwr.strategy import checkpoint
from dqnfed_flwr.strategy.checkpoint import (
    LONG,
    CheckpointStore,
    check_settings,
    read_record,
)

RECORD: Mapping[str, Any] = {"version": "0.1.0", "round": 3, "settings": {"rounds": 5}}
ARRAYS = {"theta": np.arange(3.0), "method/s0": np.ones(2, np.float32), "buffer/count": np.array(7)}


def written(directory: Path) -> Path:
    path = directory / "checkpoint.npz"
    CheckpointStore(path).write(RECORD, ARRAYS)
    return path


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        CheckpointStore(path).read()
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    record, arrays = CheckpointStore(written(tmp_path)).read()
    assert record == {"format": checkpoint.FORMAT, **RECORD}
    assert set(arrays) == set(ARRAYS)
    for name, value in ARRAYS.items():
        assert arrays[name].dtype == value.dtype
        assert np.array_equal(arrays[name], value)
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.npz"]


def test_a_write_that_fails_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint.npz"
    store = CheckpointStore(path)
    store.write(RECORD, ARRAYS)
    before = path.read_bytes()

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        store.write(RECORD, {"theta": np.zeros(1000)})
    assert path.read_bytes() == before


def test_a_missing_file_is_told_with_the_remedy(tmp_path: Path) -> None:
    assert "no checkpoint there; start the run without resume" in refused(tmp_path / "checkpoint.npz")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_file_cut_short_is_refused(tmp_path: Path, share: float) -> None:
    path = written(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    assert "damaged or no checkpoint of dqnfed-flwr" in refused(path)


def test_a_flipped_byte_anywhere_is_noticed_or_harmless(tmp_path: Path) -> None:
    path = written(tmp_path)
    data, told = path.read_bytes(), 0
    for place in range(0, len(data), 3):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        try:
            record, arrays = CheckpointStore(path).read()
        except CheckpointError:
            told += 1
            continue
        assert record == {"format": checkpoint.FORMAT, **RECORD}
        assert {name: value.tobytes() for name, value in arrays.items()} == {
            name: value.tobytes() for name, value in ARRAYS.items()
        }
    assert told > len(data) // 6  # time stamps and the like make no difference


def test_a_foreign_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    np.savez(path, theta=np.zeros(3))
    assert "damaged or no checkpoint of dqnfed-flwr" in refused(path)
    path.write_text("not an archive at all")
    assert "damaged or no checkpoint of dqnfed-flwr" in refused(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    assert "damaged or no checkpoint of dqnfed-flwr" in refused(path)
    np.savez(path, record=np.array([{"format": 1}], dtype=object))  # a pickle is not opened
    assert "damaged or no checkpoint of dqnfed-flwr" in refused(path)


@pytest.mark.parametrize(
    ("found", "words"),
    [({"format": 99, "version": "7.8.9"}, ["99", "7.8.9"]), ({"format": 1}, ["format 1 of"]), ([1, 2], ["None"])],
)
def test_another_format_is_refused_with_both_versions(tmp_path: Path, found: object, words: list[str]) -> None:
    path = tmp_path / "checkpoint.npz"
    np.savez(path, record=np.frombuffer(json.dumps(found).encode(), np.uint8))
    message = refused(path)
    assert all(word in message for word in [*words, f"reads format {checkpoint.FORMAT}", "this is 0.1.0"])


def test_the_record_is_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.npz"
    CheckpointStore(path).write(RECORD, {"theta": np.ones(LONG)})
    path.with_suffix(".vectors").unlink()
    assert read_record(path) == {"format": checkpoint.FORMAT, **RECORD}


def test_other_settings_are_refused_key_by_key() -> None:
    found = Settings.from_mapping({"clients": 4, "dqn-fed.scale": 0.5, "data": "a.npz"}).flat()
    wanted = Settings.from_mapping({"clients": 5, "dqn-fed.scale": 0.9, "data": "a.npz"}).flat()
    with pytest.raises(CheckpointError) as caught:
        check_settings(found, wanted)
    assert "clients: 4 then, 5 now; dqn-fed.scale: 0.5 then, 0.9 now" in str(caught.value)


def test_a_key_of_another_version_is_named() -> None:
    with pytest.raises(CheckpointError, match="colour: 'red' then, None now"):
        check_settings({**Settings().flat(), "colour": "red"}, Settings().flat())


@pytest.mark.parametrize("lost", ["dqn-fed.scale", "step.ladder"])
def test_a_setting_that_the_checkpoint_lacks_is_named(lost: str) -> None:
    found = {key: value for key, value in Settings().flat().items() if key != lost}
    with pytest.raises(KeyError, match=lost):
        check_settings(found, Settings().flat())


def test_what_does_not_change_the_mathematics_may_be_set_anew() -> None:
    free = [key for key, known in KNOWN.items() if known.on_resume]
    assert {"rounds", "output", "step.ladder"} < set(free)
    check_settings(Settings().flat(), {**Settings().flat(), **dict.fromkeys(free, "other")})
