from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from dqnfed_flwr.data.leaf_samples import ALPHABET, LENGTH, tokens, windows
from tests.helpers.small_sets import as_list, load_dataset, refused


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DQNFED_DATA", str(tmp_path / "root"))
    return tmp_path


def speech(length: int) -> str:
    """Text without a space at its ends in which every window of two characters differs from its neighbours."""
    return "".join(chr(ord("a") + (k * k // 7) % 26) for k in range(length))


def test_alphabet_is_leafs() -> None:
    assert len(ALPHABET) == len(set(ALPHABET)) == 80
    assert [ALPHABET.index(c) for c in "\n !&(,-.09:?AZ[]az}"] == [
        0, 1, 2, 4, 6, 8, 9, 10, 11, 20, 21, 24, 25, 50, 51, 52, 53, 78, 79,
    ]  # fmt: skip
    assert tokens("a$é—\0😀b").tolist() == [53, 1, 1, 1, 1, 1, 54]


def test_windows_predict_what_follows() -> None:
    text = speech(LENGTH + 3)
    x, y = windows(text)

    assert x.shape == (3, LENGTH)
    for place in range(3):
        assert "".join(ALPHABET[token] for token in x[place]) == text[place : place + LENGTH]
        assert ALPHABET[y[place]] == text[place + LENGTH]
    assert [len(part) for part in windows(text[:LENGTH])] == [0, 0]


def test_every_role_is_a_group_with_text_of_its_own_to_test_on(root: Path) -> None:
    # 380 characters have 300 windows: 60 tested, 80 between, 160 trained. 181 have 101: 20, 80, 1. 180 have 100: 20, 80
    roles = {"hamlet::HAMLET": speech(190) + "\n\n  " + speech(189), "hamlet::GHOST": speech(181), "x::X": speech(180)}
    file = root / "roles.json.xz"
    file.write_bytes(lzma.compress(json.dumps(roles).encode()))

    data = load_dataset(f"roles:{file}")

    assert as_list(data.group_names) == ["hamlet::GHOST", "hamlet::HAMLET"]
    assert data.groups_train is not None
    assert data.groups_test is not None
    assert np.bincount(data.groups_train).tolist() == [1, 160]
    assert np.bincount(data.groups_test).tolist() == [20, 60]
    assert data.num_classes == 80
    assert data.x_train.dtype == np.int8
    text = " ".join(roles["hamlet::HAMLET"].split())
    assert data.x_test is not None
    assert "".join(ALPHABET[c] for c in data.x_train[-1]) == text[159:239]
    assert ALPHABET[data.y_train[-1]] == text[239]
    assert "".join(ALPHABET[c] for c in data.x_test[20]) == text[240:320]


def test_options_thin_out_and_move_the_border(root: Path) -> None:
    file = root / "roles.json"
    file.write_text(json.dumps({"A": speech(380)}))

    data = load_dataset(f"roles:{file},stride=7,test=50")

    assert data.x_test is not None
    assert (len(data.x_train), len(data.x_test)) == (10, 22)  # 70 and 150 windows


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"{", "roles.json", r"roles\.json is cut short, its json has no end .*fetch or make it again"),
        (b'{"A": "To b', "roles.json", "is cut short"),
        (b'{"A": "x", "B": nul', "roles.json", "is cut short"),
        ('{"A": "é'.encode()[:-1], "roles.json", "is cut short"),
        (b'{"A": "x"', "roles.json", "is cut short"),
        (b'{"A": "x"}}', "roles.json", r"is no json .*; save it as json in UTF-8$"),
        (b"{'A': 'x'}", "roles.json", r"is no json .*; save it as json in UTF-8$"),
        (b'{"A": x}', "roles.json", r"is no json .*; save it as json in UTF-8$"),
        (b"A,B\n", "roles.json", r"is no json .*; save it as json in UTF-8$"),
        (b'{"A": "\xe9"}', "roles.json", r"is no json .*; save it as json in UTF-8$"),
        (lzma.compress(b"{}")[:-9], "roles.json.xz", r"is cut short .*; fetch it again$"),
        (b"{}", "roles.json.xz", r"not packed as \.xz says .*; give it the ending of what it is$"),
        (b"{}", "roles.json.gz", r"not packed as \.gz says"),
        (b"{}", "roles.json.bz2", r"not packed as \.bz2 says"),
        (gzip.compress(b"{}", mtime=0)[:-8] + bytes(8), "roles.json.gz", r"its bytes are damaged .*fetch it again"),
        (b"[" * 100_000, "roles.json", "json of too many levels"),
        (b"[1]", "roles.json", "expected one json object"),
        (b'{"A": "short"}', "roles.json", "no role is long enough"),
    ],
)
def test_unfit_files_say_so(root: Path, content: bytes, name: str, message: str) -> None:
    (root / name).write_bytes(content)

    refused(f"roles:{root / name}", message)

    assert not list((root / "root").rglob("*.npz"))


@pytest.mark.parametrize(("option", "message"), [("test=91", "from 1 to 90"), ("stride=0", "whole number from 1")])
def test_options_out_of_range_are_refused(root: Path, option: str, message: str) -> None:
    (root / "roles.json").write_text("{}")

    refused(f"roles:{root / 'roles.json'},{option}", message)
