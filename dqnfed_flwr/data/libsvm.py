"""LIBSVM text: one sample a line, its label and the features that are not zero, `-1 3:1 11:0.5`.

Chang and Lin, "LIBSVM: a library for support vector machines" (2011). Features become dense rows of float32. Labels
that are whole numbers become classes in rising order (-1 and +1 become 0 and 1), whose names they stay, so that a task
of numbers learns these; with fractions they are float32 targets. `qid` of ranking sets numbers natural groups. Files
may be packed as .xz, .gz or .bz2.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.data.columns import check_dense, counts_rows
from dqnfed_flwr.data.reading import FormOptions, need, unpacked
from dqnfed_flwr.data.store import Arrays
from dqnfed_flwr.errors import DataError

_SEVERAL = re.compile(r"b'[-+.\de]+,")
"""How scikit-learn shows labels that it cannot read as one number."""


def libsvm_files(paths: Sequence[Path]) -> list[Path]:
    """The files themselves."""
    return need(paths, "LIBSVM text: libsvm:TRAIN or libsvm:TRAIN,TEST")


def read_libsvm(paths: Sequence[Path], options: FormOptions, scratch: Path) -> Arrays:
    """Dense samples of the training file, and of the test file if there is one."""
    from sklearn.datasets import load_svmlight_files

    named = ", ".join(map(str, paths))
    try:
        contents = [io.BytesIO(unpacked(path)) for path in paths]
        loaded = load_svmlight_files(contents, dtype=np.float64, query_id=True)
    except (ValueError, OverflowError) as error:
        several = "; found several labels a line, where one is allowed" if _SEVERAL.search(str(error)) else ""
        raise DataError(f"data: {named}: not LIBSVM text ({error}){several}; see docs/data.md") from error
    parts = dict(zip(("train", "test"), zip(loaded[::3], loaded[1::3], loaded[2::3], strict=True), strict=False))
    arrays: dict[str, NDArray[Any]] = {}
    for part, (matrix, _, queries) in parts.items():
        rows, features = matrix.shape
        if not rows:
            raise DataError(f"data: {paths[0]}: no sample for {part}ing; if the file is cut short, fetch it again")
        check_dense(rows, features)
        arrays[f"x_{part}"] = matrix.astype(np.float32).toarray()
        if len(queries) not in (0, rows):
            raise DataError(f"data: {named}: {len(queries)} of {rows} lines have a qid; give every line one, or none")
        if len(queries):
            arrays[f"groups_{part}"] = queries
    _check_features(arrays["x_train"], paths[0])
    return {**arrays, **_targets({part: labels for part, (_, labels, _) in parts.items()}, named)}


def _targets(labels: Mapping[str, NDArray[np.float64]], named: str) -> Arrays:
    """Classes of the parts, with their names where these are not the numbers from 0; or fractions as they are."""
    values = np.unique(np.concatenate([*labels.values()]))
    with np.errstate(over="ignore"):
        if not np.isfinite(values.astype(np.float32)).all():
            raise DataError(f"data: {named}: a label is no finite number of float32; see docs/data.md")
    if not np.array_equal(values, np.rint(values)):
        return {f"y_{part}": found.astype(np.float32) for part, found in labels.items()}
    numbered = {f"y_{part}": np.searchsorted(values, found) for part, found in labels.items()}
    names = (
        {}
        if np.array_equal(values, np.arange(len(values)))
        else {"class_names": np.array([f"{v:.0f}" for v in values])}
    )
    return {**numbered, **names, "num_classes": np.array(len(values))}


def _check_features(x: NDArray[np.float32], path: Path) -> None:
    """A feature that counts the lines is an index that was saved with the data."""
    for place in np.flatnonzero(x[1] - x[0] == 1) if len(x) > 1 else ():
        if why := counts_rows(x[:, place]):
            raise DataError(
                f"data: {path}: a feature {why}, as an index does (column {place} of the dense rows, from 0); write "
                "the file without it"
            )
