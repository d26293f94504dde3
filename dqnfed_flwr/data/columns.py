"""What holds for columns of numbers, of files and frames alike: which number the rows, and what fits into float32.

pandas writes the index of a table as a column of its own: without a name into CSV, which it then reads as `Unnamed: 0`,
and as `__index_level_0__`, or by its name, into Parquet; `reset_index` makes it a column `index` or `level_0`. A model
learns the order of the file from it, so that such columns are no features.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import DataError

LEAST_ROWS = 10
"""Of fewer rows, numbers may count them by chance."""
MOST_BYTES = 8 * 2**30
"""Of dense rows, which are held in memory while a set is decoded."""
NAMELESS = "has no name of its own, as an index that was saved with the data"
_LEVEL = re.compile(r"__index_level_\d+__")
_RESET = re.compile(r"index|level_\d+")
_UNNAMED = re.compile(r"Unnamed: \d+(\.\d+)*(_level_\d+)?")


def is_level(name: str) -> bool:
    """Whether pandas' writers name an index so."""
    return bool(_LEVEL.fullmatch(name))


def is_unnamed(name: str) -> bool:
    """Whether pandas' readers name a column without a name so."""
    return bool(_UNNAMED.fullmatch(name))


def names_index(name: str) -> bool:
    """Whether pandas' writers, readers or `reset_index` name an index so."""
    return is_level(name) or is_unnamed(name) or bool(_RESET.fullmatch(name))


def why_index(name: str, numbers: NDArray[Any], *, leading: bool) -> str:
    """Why the numbers [N] of a column number the rows; empty if they do not.

    `leading` says that no column of another name than an index may have stands before it.
    """
    if leading and _RESET.fullmatch(name) and _is_whole(numbers) and len(np.unique(numbers)) == len(numbers):
        return "has the name that pandas' reset_index gives an index, and no number twice"
    why = counts_rows(numbers)
    return f"{why}, as an index does" if why else ""


def counts_rows(numbers: NDArray[Any]) -> str:
    """In words, from where the numbers [N] of a column count its rows, strictly from 0 or 1; empty if they do not."""
    if len(numbers) < LEAST_ROWS or numbers[0] not in (0, 1) or numbers[1] - numbers[0] != 1:
        return ""
    first = int(numbers[0])
    counted = np.array_equal(numbers, np.arange(first, first + len(numbers)))
    return f"counts the rows from {first}" if counted else ""


def numbers_rows(numbers: NDArray[Any]) -> bool:
    """Whether numbers [N] are those of rows in another order, or from another start: each once, without a gap."""
    if len(numbers) < LEAST_ROWS or not _is_whole(numbers):
        return False
    return np.array_equal(np.sort(numbers), numbers.min() + np.arange(len(numbers)))


def _is_whole(numbers: NDArray[Any]) -> bool:
    return np.array_equal(numbers, np.rint(numbers))


def check_dense(rows: int, features: int) -> None:
    """Raise DataError where so many float32 rows are more than `MOST_BYTES`."""
    if 4 * rows * features > MOST_BYTES:
        raise DataError(
            f"data: {rows} samples of {features} features are {4 * rows * features / 2**30:.0f} GiB as dense rows, "
            f"more than {MOST_BYTES // 2**30}; choose features or samples first"
        )


MERGED = (
    "holds whole numbers above 16,777,216, some of which become equal in float32; take the same number from each, or "
    "leave the column out if they are identifiers"
)
"""What is said of a column that `merges`."""


def merges(numbers: NDArray[Any]) -> bool:
    """Whether float32 makes different whole numbers [N] of a column equal, as it may above 2**24."""
    if not len(numbers) or max(-float(numbers.min()), float(numbers.max())) <= 2**24:
        return False
    if numbers.dtype.kind == "f" and not np.array_equal(numbers, np.rint(numbers)):
        return False
    different = np.unique(numbers)
    with np.errstate(over="ignore"):
        return len(np.unique(different.astype(np.float32))) < len(different)


def to_float32(exact: NDArray[Any], place: Callable[[int], str]) -> NDArray[np.float32]:
    """Numbers [N] as float32; DataError where one is too large for it, at the `place` of its row."""
    with np.errstate(over="ignore"):
        numbers = exact.astype(np.float32)
    if len(bad := np.flatnonzero(~np.isfinite(numbers))):
        raise DataError(f"{place(int(bad[0]))}: found {exact[bad[0]]:g}; allowed are numbers of at most 3.4e38 in size")
    return numbers
