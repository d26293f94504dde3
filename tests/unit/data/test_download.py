from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dqnfed_flwr.data.download import PublishedFile, fetch
from dqnfed_flwr.errors import DataError
from tests.helpers.file_server import FileServer, file_server

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
