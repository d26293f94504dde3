"""Frames, columns, sparse matrices and tensors that are given in Python; the frames are doubles of pandas'."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import load_client
from dqnfed_flwr.data.frames import arrays_of, in_order
from dqnfed_flwr.errors import DataError

NAType = type("NAType", (), {"__ne__": lambda self, other: self, "__bool__": lambda self: 1 / 0})


class Column:
    """A column as pandas has it, with a dtype of its own."""

    def __init__(self, values: Any, dtype: str = "") -> None:
        self._values = np.asarray(values)
        self.dtype = dtype or self._values.dtype

    def to_numpy(self, dtype: Any = None) -> Any:
        return self._values if dtype is None else self._values.astype(dtype)


class Frame:
    """A frame as polars has it."""

    def __init__(self, **columns: Any) -> None:
        self._columns = {
            name: values if isinstance(values, Column) else Column(values) for name, values in columns.items()
        }
        self.columns = list(columns)

    def get_columns(self) -> list[Column]:
        return list(self._columns.values())

    def to_numpy(self) -> Any:
        raise AssertionError("columns of several types are read one by one")


def objects(*values: Any) -> Any:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        ([True, False], [1, 0]),
        ([3, 4], [3, 4]),
        (np.array([3, 4], np.uint8), [3, 4]),
        (objects(3, 4), [3, 4]),
        (objects(True, False), [1, 0]),
        (objects(Decimal("1.5"), Fraction(1, 4)), [1.5, 0.25]),
        (np.array(["1970-01-02", "1970-01-03"], "datetime64[ns]"), [1, 2]),
        (np.array([36, 48], "timedelta64[h]"), [1.5, 2]),
        (Column(np.array(["1970-01-02T12", "1970-01-01"], "datetime64[s]"), "datetime64[us, UTC]"), [1.5, 0]),
    ],
)
def test_columns_of_numbers_become_features(said: list[str], values: Any, numbers: list[float]) -> None:
    x = arrays_of({"x_train": Frame(a=[0.5, 1.5], b=values)})["x_train"]
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x, np.array([[0.5, 1.5], numbers], np.float32).T)
    assert said == [] or "column 'b' is read as days" in said[0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (Column(["a", "b"], "category"), "x_train, column 'b': found the dtype category; give numbers: encode it"),
        (Column([1, 2], "Categorical(ordering='physical')"), "column 'b': found the dtype Categorical"),
        (["a", "b"], "column 'b': found the dtype <U1; give numbers"),
        (objects("a", "b"), "column 'b', row 0: found 'a', of type str; give numbers"),
        (objects(1, "b"), "column 'b', row 1: found 'b', of type str; give numbers"),
        (objects(1, None), "column 'b', row 1: found a missing value; every row needs a value"),
        (objects(NAType(), NAType()), r"column 'b', row 0: found a missing value \(and in 1 further rows\)"),
        ([np.nan, 1], "column 'b', row 0: found a missing value"),
        (np.array(["NaT", "2020-01-01"], "datetime64[s]"), "column 'b', row 0: found a missing value"),
        ([1j, 2], "column 'b': found the dtype complex128; give numbers"),
        ([1e39, 1], "column 'b', row 0: found 1e\\+39; allowed are numbers of at most 3.4e38"),
    ],
)
def test_other_columns_are_named(values: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        arrays_of({"x_train": Frame(a=[0.5, 1.5], b=values)})


def test_columns_that_number_the_rows_are_left_out(said: list[str]) -> None:
    frame = Frame(**{"Unnamed: 0": [4, 2], "a": [0.5, 1.5]})
    assert arrays_of({"x_train": frame})["x_train"].tolist() == [[0.5], [1.5]]
    assert arrays_of({"x_train": Frame(n=np.arange(1, 13), a=np.ones(12))})["x_train"].shape == (12, 1)
    assert [line.partition(";")[0] for line in said] == [
        "data: x_train: column 'Unnamed: 0' is left out: it has no name of its own, as an index that was saved with "
        "the data",
        "data: x_train: column 'n' is left out: it counts the rows from 1, as an index does",
    ]
    with pytest.raises(DataError, match="no column of features is left; to keep all, give the frame's to_numpy"):
        arrays_of({"x_train": Frame(n=np.arange(12))})


def test_an_index_that_was_reset_is_left_out_of_a_frame_where_it_leads(said: list[str]) -> None:
    found = arrays_of(
        {
            "x_train": Frame(level_0=[0, 1, 2], index=[7, 2, 9], a=[1, 1, 2]),
            "x_test": Frame(index=[3, 5], a=[4, 4]),
        }
    )
    assert (found["x_train"].tolist(), found["x_test"].tolist()) == ([[1], [1], [2]], [[4], [4]])
    assert [line.partition(";")[0] for line in said] == [
        f"data: x_train: column '{name}' is left out: it has the name that pandas' reset_index gives an index, and no "
        "number twice"
        for name in ("level_0", "index")
    ]
    for kept in (
        {"index": [7, 2, 2], "a": [1, 1, 2]},
        {"a": [1, 1, 2], "index": [7, 2, 9]},
        {"index": [0.5], "a": [1]},
    ):
        assert arrays_of({"x_train": Frame(**kept)})["x_train"].shape[1] == 2


def test_masked_values_are_refused_and_arrays_without_a_mask_are_taken() -> None:
    full = np.ma.masked_array([[1.5, 2], [3, 4]], mask=[[False, False], [True, False]])
    with pytest.raises(DataError, match=r"x_train, place \[1, 0\]: found a masked value; every value is needed"):
        arrays_of({"x_train": full})
    with pytest.raises(DataError, match=r"y_train, place \[0\]: found a masked value \(and 1 further ones\)"):
        arrays_of({"y_train": np.ma.masked_equal([1, 0, 1], 1)})
    for mask in (np.ma.nomask, np.zeros((2, 2), bool)):
        found = arrays_of({"x_train": np.ma.masked_array(full.data, mask=mask)})["x_train"]
        assert type(found) is np.ndarray
        np.testing.assert_array_equal(found, full.data)


def test_whole_numbers_of_a_frame_that_become_equal_are_told(said: list[str]) -> None:
    arrays_of({"x_train": Frame(a=[2**24, 2**24 + 1], b=[2**60, 2**60 + 1], c=[2**24, 2**24 + 2], d=[0.5, 2**24])})
    assert [line.partition(",")[0] for line in said] == [
        f"data: x_train: column '{name}' holds whole numbers above 16" for name in "ab"
    ]


def test_shuffled_row_numbers_of_a_frame_are_kept_with_a_word(said: list[str]) -> None:
    rows = 5 * np.arange(12) % 12
    found = arrays_of({"x_train": Frame(n=rows, a=np.ones(12)), "x_test": Frame(n=rows, a=np.ones(12))})
    assert found["x_train"].shape == (12, 2)
    assert said == ["data: x_train: column 'n' holds each row number once; leave it out if it is an index"]


def test_a_test_frame_has_the_columns_of_the_training_frame(said: list[str]) -> None:
    train = Frame(n=np.arange(12), a=np.ones(12), b=np.zeros(12))
    found = arrays_of({"x_test": Frame(b=[3], a=[2], n=[7]), "x_train": train})
    assert list(found) == ["x_test", "x_train"]
    assert found["x_test"].tolist() == [[2, 3]]
    with pytest.raises(DataError, match="x_test: lacks the columns b and has others none than x_train"):
        arrays_of({"x_train": train, "x_test": Frame(a=[2])})
    with pytest.raises(DataError, match="x_test: lacks the columns none and has others c than x_train"):
        arrays_of({"x_train": Frame(a=[1]), "x_test": Frame(a=[2], c=[3])})


def test_targets_are_columns_and_frames_of_one(said: list[str]) -> None:
    for given in (
        Column([True, False]),
        Frame(y=[1, 0]),
        np.array([True, False]),
        Column(objects(1, 0)),
        [True, False],
    ):
        y = arrays_of({"y_train": given})["y_train"]
        assert (y.dtype.kind, y.tolist()) == ("i", [1, 0])
    assert arrays_of({"y_train": Frame(a=[1.5], b=[2])})["y_train"].tolist() == [[1.5, 2]]
    with pytest.raises(DataError, match="y_train: found the dtype category"):
        arrays_of({"y_train": Column([1, 2], "category")})


def test_sparse_matrices_and_tensors_become_arrays() -> None:
    dense = np.array([[0, 1.5], [2, 0]])
    tensor = torch.tensor(dense, requires_grad=True)
    for given in (scipy.sparse.csr_matrix(dense), scipy.sparse.coo_array(dense), tensor, tensor.detach().to_sparse()):
        np.testing.assert_array_equal(arrays_of({"x_train": given})["x_train"], dense)


def test_the_order_of_train_test_split_is_known_by_lengths_and_shapes(said: list[str]) -> None:
    x, y, v, w = np.ones((6, 2)), np.zeros(6), np.ones((4, 2)), np.zeros(4)
    assert in_order((x, y, v, w)) == (x, y, v, w)
    assert said == []
    assert [part.shape for part in in_order((x, v, y, w))] == [(6, 2), (6,), (4, 2), (4,)]
    assert [part.shape for part in in_order((x, x, y, y))] == [(6, 2), (6,), (6, 2), (6,)]
    assert len(said) == 2
    assert [np.shape(part) for part in in_order((x, y, x, y))] == [(6, 2), (6,), (6, 2), (6,)]
    assert len(in_order((x, y, x, w))) == 4  # the lengths are named later
    assert len(said) == 2


def test_masked_values_of_a_function_of_the_user_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "import numpy as np",
        "def data(settings, partition, clients):",
        "    return {'x_train': np.ma.masked_equal(np.ones((4, 2)), partition), 'y_train': [0, 1, 0, 1]}",
    ]
    (tmp_path / "masked_by_user.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = Settings.from_mapping({"data": "masked_by_user:data", "clients": 2})
    assert len(load_client(settings, 0).y_train) > 0
    with pytest.raises(DataError, match=r"masked_by_user:data: x_train, place \[0, 0\]: found a masked value"):
        load_client(settings, 1)
