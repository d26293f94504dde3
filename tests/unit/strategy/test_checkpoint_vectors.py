"""Long vectors of checkpoints: written once, where nothing lies that is still needed, and whole or refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dqnfed_flwr.errors import CheckpointError
from dqnfed_flwr.strategy.checkpoint import LONG, CheckpointStore, Place

LENGTH = LONG // 4  # float32, one page


def vector(value: float, length: int = LENGTH) -> NDArray[np.float32]:
    return np.full(length, value, np.float32)


def store(directory: Path) -> CheckpointStore:
    return CheckpointStore(directory / "checkpoint.npz")


def stored(directory: Path) -> dict[str, list[float]]:
    """First and last number of each vector, as a new process reads them."""
    return {name: [float(v[0]), float(v[-1])] for name, v in store(directory).read()[1].items()}


def test_vectors_come_back_with_dtype_and_shape(tmp_path: Path) -> None:
    arrays: dict[str, NDArray[Any]] = {
        "a": np.arange(LONG, dtype=np.float64).reshape(2, -1),
        "b": np.arange(LONG, dtype=np.int8),
        "turned": np.arange(4.0 * LENGTH).reshape(4, -1).T,
        "short": np.array(3),
    }
    store(tmp_path).write({}, arrays)
    found = store(tmp_path).read()[1]
    assert set(found) == set(arrays)
    for name, value in arrays.items():
        assert found[name].dtype == value.dtype
        assert np.array_equal(found[name], value)


def test_short_arrays_need_no_second_file(tmp_path: Path) -> None:
    store(tmp_path).write({}, {"a": np.zeros(3)})
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.npz"]


def test_what_the_last_checkpoint_holds_is_not_written_again(tmp_path: Path) -> None:
    writer, old = store(tmp_path), torch.ones(LENGTH)
    writer.write({}, {"theta": vector(1), "candidate": old.numpy()})
    path = tmp_path / "checkpoint.vectors"
    found = path.stat()
    path.write_bytes(bytes(found.st_size))  # so that it shows, and is not noticed
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    writer.write({}, {"theta": old.numpy(), "candidate": vector(3)})
    with pytest.raises(CheckpointError, match=r"the checksum of 'theta' in checkpoint\.vectors is another"):
        store(tmp_path).read()


def test_a_vector_under_two_names_is_written_once(tmp_path: Path) -> None:
    theta = vector(1)
    store(tmp_path).write({}, {"theta": theta, "candidate": theta})
    assert (tmp_path / "checkpoint.vectors").stat().st_size == theta.nbytes
    assert stored(tmp_path) == {"theta": [1, 1], "candidate": [1, 1]}


def test_the_file_does_not_grow_with_the_rounds(tmp_path: Path) -> None:
    writer, pairs = store(tmp_path), [vector(number) for number in range(4)]
    for number in range(20):
        pairs = [*pairs[1:], vector(number)]
        writer.write({}, {"theta": vector(-number), **{f"s{place}": pair for place, pair in enumerate(pairs)}})
    assert (tmp_path / "checkpoint.vectors").stat().st_size <= (5 + 2) * pairs[0].nbytes
    assert stored(tmp_path)["s0"] == [16, 16]


def test_a_run_that_goes_on_spares_the_checkpoint_it_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(tmp_path).write({"round": 1}, {"theta": vector(1)})
    writer = store(tmp_path)
    writer.read()
    monkeypatch.setattr(Path, "replace", _killed)
    with pytest.raises(KeyboardInterrupt):
        writer.write({"round": 2}, {"theta": vector(2)})
    assert stored(tmp_path) == {"theta": [1, 1]}


@pytest.mark.parametrize("failing", [1, 2, 3], ids=["vectors", "archive", "directory"])
def test_a_write_that_fails_is_done_again_at_the_same_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    writer, kept, path = store(tmp_path), vector(1), tmp_path / "checkpoint.vectors"
    writer.write({}, {"theta": vector(1), "kept": kept})
    new = {"kept": kept, "theta": vector(2)}
    _fail_at(failing, monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        writer.write({}, new)
    reached = stored(tmp_path)
    assert reached == {"theta": [2.0 if failing == 3 else 1.0] * 2, "kept": [1, 1]}
    length = path.stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _killed)
        with pytest.raises(KeyboardInterrupt):
            writer.write({}, new)
    assert stored(tmp_path) == reached
    writer.write({}, new)
    assert stored(tmp_path) == {"theta": [2, 2], "kept": [1, 1]}
    assert path.stat().st_size == length


def _fail_at(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one call of fsync from now on find the disk full."""
    synced, calls = os.fsync, [0]

    def fsync(descriptor: int) -> None:
        calls[0] += 1
        if calls[0] == call:
            raise OSError(28, "No space left on device")
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("harm", ["gone", "cut", "another"])
def test_a_file_that_was_taken_away_is_written_anew(tmp_path: Path, harm: str) -> None:
    writer, kept, path = store(tmp_path), vector(1), tmp_path / "checkpoint.vectors"
    writer.write({}, {"theta": vector(2), "kept": kept})
    if harm == "cut":
        os.truncate(path, LENGTH)
    else:
        path.unlink()
    if harm == "another":
        path.write_bytes(bytes(100 * LENGTH))
    writer.write({}, {"theta": vector(3), "kept": kept})
    assert stored(tmp_path) == {"theta": [3, 3], "kept": [1, 1]}


def test_two_that_write_to_one_folder_leave_whole_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, kept = store(tmp_path), store(tmp_path), vector(1)
    one.write({}, {"theta": vector(1), "kept": kept})
    other.read()
    for number in (2, 3):
        other.write({}, {"theta": vector(number), "kept": vector(number)})
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", _killed)
        with pytest.raises(KeyboardInterrupt):
            one.write({}, {"theta": vector(4), "kept": kept})
    assert stored(tmp_path) == {"theta": [3, 3], "kept": [3, 3]}
    one.write({}, {"theta": vector(4), "kept": kept})
    assert stored(tmp_path) == {"theta": [4, 4], "kept": [1, 1]}


def test_what_another_left_there_is_replaced_whatever_it_is(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.npz").write_text("no archive")
    store(tmp_path).write({}, {"theta": vector(1)})
    assert stored(tmp_path) == {"theta": [1, 1]}


def test_what_is_read_may_be_written_to(tmp_path: Path) -> None:
    store(tmp_path).write({}, {"theta": vector(1)})
    assert store(tmp_path).read()[1]["theta"].flags.writeable


def test_discard_leaves_nothing(tmp_path: Path) -> None:
    writer = store(tmp_path)
    writer.write({}, {"theta": vector(1)})
    writer.discard()
    writer.discard()
    assert list(tmp_path.iterdir()) == []
    writer.write({}, {"theta": vector(2)})
    assert stored(tmp_path) == {"theta": [2, 2]}


@pytest.mark.parametrize("harm", ["flipped", "cut", "gone"])
def test_vectors_that_are_not_what_was_written_are_refused(tmp_path: Path, harm: str) -> None:
    store(tmp_path).write({}, {"theta": vector(1)})
    path = tmp_path / "checkpoint.vectors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    if harm == "flipped":
        path.write_bytes(data)
    elif harm == "cut":
        os.truncate(path, LENGTH)
    else:
        path.unlink()
    with pytest.raises(CheckpointError, match=r"checkpoint.npz: damaged \("):
        store(tmp_path).read()


@pytest.mark.parametrize("values", [[1, 2], [0, 4, "x", "<f4", [1]], [0, 4, 1, 4, [1]], [0, 4, 1, "<f4", 1], None])
def test_a_record_that_names_no_places_is_refused(tmp_path: Path, values: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        Place.of(values)
    store(tmp_path).write({"vectors": {"theta": values}}, {})
    with pytest.raises(CheckpointError, match="damaged"):
        store(tmp_path).read()


Round = tuple[list[tuple[int, int]], bool]


@settings(max_examples=60, deadline=None)
@given(
    rounds=st.lists(
        st.tuples(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3)), max_size=4), st.booleans()), max_size=8
    )
)
def test_whatever_is_replaced_and_whenever_it_is_killed_the_last_whole_checkpoint_is_read(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[Round]
) -> None:
    directory = tmp_path_factory.mktemp("checkpoint")
    writer = store(directory)
    arrays: dict[str, NDArray[Any]] = {"0": vector(-1)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)  # its time
        writer.write({}, arrays)
    durable = dict(arrays)
    for number, (changes, killed) in enumerate(rounds):
        arrays |= {str(name): vector(number, length * LENGTH) for name, length in changes}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", lambda _: None)
            if killed:
                patch.setattr(Path, "replace", _killed)
            try:
                writer.write({"round": number}, arrays)
                durable = dict(arrays)
            except KeyboardInterrupt:
                writer = store(directory)
                arrays = dict(writer.read()[1])
        found = store(directory).read()[1]
        assert {name: v.tobytes() for name, v in found.items()} == {name: v.tobytes() for name, v in durable.items()}


def _killed(*_: object) -> None:
    raise KeyboardInterrupt
