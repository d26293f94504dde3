from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler

from dqnfed_flwr.config import KNOWN, Settings
from dqnfed_flwr.data import load_client
from dqnfed_flwr.data.clients import standardised, summarise
from dqnfed_flwr.errors import DataError


def features(tmp_path: Path, x: Any, **more: Any) -> str:
    np.savez(tmp_path / "set.npz", x_train=x, y_train=np.arange(len(x)) % 2, **more)
    return str(tmp_path / "set.npz")


def loaded(data: str, **changes: Any) -> Settings:
    return Settings.from_mapping({"data": data, "clients": 2, "partition": "iid", **changes})


@given(st.integers(0, 2**32 - 1), st.integers(2, 20), st.sampled_from([np.float32, np.float64]))
def test_the_first_part_scales_all_as_in_scikit_learn(seed: int, samples: int, dtype: type) -> None:
    rng = np.random.default_rng(seed)
    train: NDArray[Any]
    test: NDArray[Any]
    train, test = (rng.normal(rng.normal(0, 50, 4), rng.uniform(0.1, 9, 4), (n, 4)).astype(dtype) for n in (samples, 5))
    scaler = StandardScaler().fit(train.astype(np.float64))

    found = standardised(train, test, test[:0])

    assert [part.shape for part in found] == [train.shape, test.shape, (0, 4)]
    assert {part.dtype for part in found} == {np.dtype(dtype)}
    raw: NDArray[Any]
    for part, raw in zip(found, (train, test, test[:0]), strict=True):
        expected = scaler.transform(raw.astype(np.float64)) if len(raw) else raw
        np.testing.assert_allclose(part, expected, rtol=1e-5, atol=1e-6)


def test_a_constant_feature_is_zero_everywhere() -> None:
    train, test = standardised(np.array([[0.1, 1], [0.1, 3], [0.1, 5]], np.float32), np.array([[7, 3]], np.float32))
    np.testing.assert_array_equal(train[:, 0], 0)
    np.testing.assert_array_equal(test, [[0, 0]])


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (np.array([[1e300], [-1e300]]), np.array([[0.0]])),
        (np.array([[1e-200], [0]]), np.array([[0.0]])),
        (np.array([[1e-30], [0]], np.float32), np.array([[1e30]], np.float32)),
    ],
)
def test_features_that_scale_to_no_numbers_are_refused(train: NDArray[Any], test: NDArray[Any]) -> None:
    with pytest.raises(DataError, match="data-scale: features are too large or too small"):
        standardised(train, test)


def test_every_client_has_statistics_of_its_own_training_part(tmp_path: Path, rng: np.random.Generator) -> None:
    data = features(tmp_path, rng.normal(100, 20, (60, 3)).astype(np.float32))
    split = {"validation-fraction": 0.25}
    for partition in range(2):
        plain = load_client(loaded(data, split=split), partition)
        scaled = load_client(loaded(data, split=split, **{"data-scale": "standardise"}), partition)

        scaler = StandardScaler().fit(plain.x_train.astype(np.float64))
        for part in ("x_train", "x_validation", "x_test"):
            raw = getattr(plain, part)
            np.testing.assert_allclose(getattr(scaled, part), scaler.transform(raw), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(scaled.y_train, plain.y_train)


def test_without_it_samples_keep_their_bits(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.normal(size=(20, 3)).astype(np.float32)
    client = load_client(loaded(features(tmp_path, x)), 0)
    assert {row.tobytes() for row in client.x_train} <= {row.tobytes() for row in x}


@pytest.mark.parametrize(("dtype", "kind"), [(np.uint8, "images"), (np.int64, "tokens")])
def test_images_and_tokens_are_refused(tmp_path: Path, dtype: type, kind: str) -> None:
    x: NDArray[Any] = np.arange(40 * 9).reshape((40, 3, 3) if kind == "images" else (40, 9)).astype(dtype)
    settings = loaded(features(tmp_path, x), **{"data-scale": "standardise"})
    for call in (lambda: load_client(settings, 0), lambda: summarise(settings)):
        with pytest.raises(DataError, match=f"holds {kind} of dtype .*only float features"):
            call()


def test_the_setting_changes_figures() -> None:
    assert (KNOWN["data-scale"].changes, KNOWN["data-scale"].about) == ("experiment", "data")
