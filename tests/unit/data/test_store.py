from __future__ import annotations

import hashlib
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from dqnfed_flwr import archives
from dqnfed_flwr.data.store import PublishedFile, fetch, map_npz
from dqnfed_flwr.errors import DataError
from tests.helpers.file_server import FileServer, file_server

DTYPES = st.sampled_from(["u1", "<i4", ">i2", "<i8", "<f4", "<f8", "?", "S3", "<U2"])
ARRAYS = hnp.arrays(dtype=DTYPES, shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=ARRAYS, second=ARRAYS, compressed=st.booleans(), fortran=st.booleans())
def test_equals_numpy_load_bit_for_bit(
    tmp_path: Path, first: NDArray[Any], second: NDArray[Any], compressed: bool, fortran: bool
) -> None:
    path = tmp_path / "set.npz"
    first = np.asfortranarray(first) if fortran else first
    (np.savez_compressed if compressed else np.savez)(path, first=first, second=second)

    mapped = map_npz(path)

    with np.load(path) as loaded:
        assert set(mapped) == set(loaded.files)
        for name in loaded.files:
            assert mapped[name].dtype == loaded[name].dtype
            assert mapped[name].shape == loaded[name].shape
            assert mapped[name].tobytes() == loaded[name].tobytes()


def test_uncompressed_members_are_maps_and_compressed_ones_are_not(tmp_path: Path) -> None:
    x = np.arange(1000).reshape(50, 20)
    np.savez(tmp_path / "plain.npz", x=x)
    np.savez_compressed(tmp_path / "packed.npz", x=x)

    assert isinstance(map_npz(tmp_path / "plain.npz")["x"], np.memmap)
    assert not isinstance(map_npz(tmp_path / "packed.npz")["x"], np.memmap)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read_only(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "set.npz", x=np.zeros((3, 2)))

    with pytest.raises(ValueError, match="read-only"):
        map_npz(tmp_path / "set.npz")["x"][0] = 1


def test_missing_file_names_the_place_looked_at(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file .*absent\.npz.*absolute path"):
        map_npz(tmp_path / "absent.npz")


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 cut short"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "set.npz"
    path.write_bytes(content)

    with pytest.raises(DataError, match=r"cannot be read as an \.npz archive"):
        map_npz(path)


@pytest.mark.parametrize("place", range(40, 400, 9))
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_bytes_are_refused_or_change_nothing_but_values(tmp_path: Path, save: Any, place: int) -> None:
    path = tmp_path / "set.npz"
    save(path, x=np.arange(300.0), y=np.arange(30))
    content = bytearray(path.read_bytes())
    content[place : place + 3] = b"\x07(\xfe"
    path.write_bytes(content)

    with suppress(DataError):
        assert {name: len(values) for name, values in map_npz(path).items()} == {"x": 300, "y": 30}


def test_python_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", x=np.array([{}], dtype=object))

    with pytest.raises(DataError, match="without Python objects"):
        map_npz(tmp_path / "set.npz")


def test_shape_beyond_the_member_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    np.savez(path, x=np.zeros((10, 10)))
    path.write_bytes(path.read_bytes().replace(b"(10, 10)", b"(99, 99)"))

    with pytest.raises(DataError, match="declares 78408 bytes, found 800"):
        map_npz(path)


def packed_zeros(path: Path, megabytes: int) -> None:
    """An archive that is a thousandth as large as what it unpacks to."""
    np.savez_compressed(path, x=np.zeros((megabytes, 2**20), dtype=np.uint8), y=np.zeros(3))


def test_a_packed_archive_above_the_bound_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed_zeros(tmp_path / "bomb.npz", 24)
    np.savez(tmp_path / "plain.npz", x=np.zeros((24, 2**20), dtype=np.uint8))
    assert (tmp_path / "bomb.npz").stat().st_size < 100_000
    monkeypatch.setattr(archives, "MOST_PACKED", 2**24)
    tracemalloc.start()
    try:
        with pytest.raises(
            DataError, match=r"packed arrays are 25,166,\d+ bytes, and at most 16,777,216 .*numpy\.savez"
        ):
            map_npz(tmp_path / "bomb.npz")
        with pytest.raises(ValueError, match="at most 16,777,216"):
            archives.read_npz(tmp_path / "bomb.npz")
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
    assert isinstance(map_npz(tmp_path / "plain.npz")["x"], np.memmap)  # mapped, whatever its size


def test_a_directory_that_lies_about_the_size_unpacks_no_more_than_it_says(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    packed_zeros(path, 24)
    with zipfile.ZipFile(path) as archive:
        true = archive.getinfo("x.npy").file_size
    path.write_bytes(path.read_bytes().replace(true.to_bytes(4, "little"), (100_000).to_bytes(4, "little")))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"declares 25165824 bytes, found 100000"):
            map_npz(path)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


CONTENT = bytes(range(256)) * 40
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as served:
        served.files["/set.bin"] = CONTENT
        yield served


def published(server: FileServer, *paths: str, md5: str = MD5) -> PublishedFile:
    return PublishedFile("set.bin", tuple(server.url + path for path in paths or ("/set.bin",)), md5)


def test_a_whole_file_is_fetched_once_and_its_place_is_said(
    server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert fetch(published(server), tmp_path / "new").read_bytes() == CONTENT

    assert server.asked == [("/set.bin", "")]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["set.bin"]
    captured = capsys.readouterr()
    assert f"set.bin: fetched to {tmp_path / 'new' / 'set.bin'}, MD5 as published" in captured.err
    assert captured.out == ""


def test_a_transfer_that_is_cut_off_goes_on_by_itself(server: FileServer, tmp_path: Path) -> None:
    server.cuts = [1000, 500]

    assert fetch(published(server), tmp_path).read_bytes() == CONTENT

    assert [wanted for _, wanted in server.asked] == ["", "bytes=1000-", "bytes=1500-"]


def test_what_arrived_is_kept_for_the_next_call(server: FileServer, tmp_path: Path) -> None:
    server.cuts = [1000, 10, 10]
    with pytest.raises(DataError) as caught:
        fetch(published(server), tmp_path)
    assert f"ended after 1,020 of {len(CONTENT):,} bytes" in str(caught.value)
    assert f"1,020 bytes are in {tmp_path / 'set.bin.part'} and will be used" in str(caught.value)
    assert f"put the file itself to {tmp_path / 'set.bin'}" in str(caught.value)

    assert fetch(published(server), tmp_path).read_bytes() == CONTENT

    assert server.asked[-1] == ("/set.bin", "bytes=1020-")
    assert not (tmp_path / "set.bin.part").exists()


def test_a_server_without_ranges_begins_anew(server: FileServer, tmp_path: Path) -> None:
    server.ranges, server.cuts = False, [1000]

    assert fetch(published(server), tmp_path).read_bytes() == CONTENT

    assert [wanted for _, wanted in server.asked] == ["", "bytes=1000-"]


@pytest.mark.parametrize("left", [CONTENT, CONTENT + b"more"])
def test_a_part_that_is_whole_or_too_long_is_judged_by_its_sum(server: FileServer, tmp_path: Path, left: bytes) -> None:
    (tmp_path / "set.bin.part").write_bytes(left)

    assert fetch(published(server), tmp_path).read_bytes() == CONTENT

    assert len(server.asked) == (1 if left == CONTENT else 2)


def test_a_part_of_another_file_is_thrown_away(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "set.bin.part").write_bytes(b"another" * 100)

    assert fetch(published(server), tmp_path).read_bytes() == CONTENT

    assert [wanted for _, wanted in server.asked] == ["bytes=700-", ""]


def test_a_wrong_checksum_is_refused_and_nothing_kept(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"MD5 {MD5}, published {'0' * 32}; what came was deleted.*nothing was kept"):
        fetch(published(server, md5="0" * 32), tmp_path)

    assert len(server.asked) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_next_place_is_tried(server: FileServer, tmp_path: Path) -> None:
    server.files["/bad.bin"] = b"an error page"

    assert fetch(published(server, "/gone.bin", "/bad.bin", "/set.bin"), tmp_path).read_bytes() == CONTENT

    assert [path for path, _ in server.asked] == ["/gone.bin", "/bad.bin", "/set.bin"]


def test_nobody_there_names_every_place(tmp_path: Path) -> None:
    with file_server() as gone:
        nowhere = published(gone, "/a", "/b")
    with pytest.raises(DataError, match=r"/a: .*refused.*/b: .*refused.*nothing was kept; try again"):
        fetch(nowhere, tmp_path)


def test_a_file_that_lies_there_corrupt_says_what_to_do(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "set.bin").write_bytes(CONTENT[:100])

    with pytest.raises(DataError, match=r"set\.bin is not the published file: MD5 .*100 bytes.*delete it"):
        fetch(published(server), tmp_path)

    assert (server.asked, len((tmp_path / "set.bin").read_bytes())) == ([], 100)
