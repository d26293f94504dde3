"""A fingerprint tells contents apart, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.data.sets import fingerprint
from dqnfed_flwr.data.torchvision_sets import Size
from dqnfed_flwr.errors import DataError
from tests.helpers.small_sets import shrink


def arrays() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {"x_train": draw.integers(0, 255, (60, 8, 8), dtype=np.uint8), "y_train": np.arange(60) % 3}


def test_place_time_order_and_compression_do_not_count(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays())
    np.savez_compressed(tmp_path / "b.npz", **dict(reversed(arrays().items())))
    first, second = (fingerprint(str(tmp_path / name)) for name in ("a.npz", "b.npz"))
    assert first == second
    assert first is not None
    assert len(first) == 16


@pytest.mark.parametrize("change", ["one label", "one pixel", "order", "part", "dtype"])
def test_any_change_of_the_contents_counts(tmp_path: Path, change: str) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, **arrays())
    before = fingerprint(str(path))
    found = arrays()
    match change:
        case "one label":
            found["y_train"][59] = 0
        case "one pixel":
            found["x_train"][30, 4, 4] += 1
        case "order":
            found["y_train"] = found["y_train"][::-1]
        case "part":
            found |= {"x_test": found["x_train"][:5], "y_test": found["y_train"][:5]}
        case "dtype":
            found["x_train"] = found["x_train"].astype(np.float32)
    np.savez(path, **found)
    assert fingerprint(str(path)) != before


def test_a_set_by_name_is_that_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DQNFED_DATA", str(tmp_path))
    shrink(monkeypatch, "cifar10", Size(60, 60, (8, 8), 3))
    test = {key.replace("train", "test"): values for key, values in arrays().items()}
    np.savez(tmp_path / "cifar10.npz", **arrays(), **test)
    assert fingerprint("cifar10") == fingerprint("torchvision:cifar10") == fingerprint(str(tmp_path / "cifar10.npz"))


def test_digits_have_one_and_a_function_has_none() -> None:
    assert fingerprint("digits") == fingerprint("digits")
    assert fingerprint("digits") is not None
    assert fingerprint("my_data:client") is None


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file"):
        fingerprint(str(tmp_path / "d.npz"))
    with pytest.raises(DataError, match="unknown set 'no-such-set'"):
        fingerprint("no-such-set")
