"""LIBSVM text: one sample a line, its label and the features that are not zero, `-1 3:1 11:0.5`.

Chang and Lin, "LIBSVM: a library for support vector machines" (2011). Features become dense rows of float32; labels,
whatever numbers they are, become classes in rising order (-1 and +1 become 0 and 1). Files may be packed as .xz, .gz or
.bz2. There are no groups.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.data.forms import FormOptions, check_dense, need, unpacked
from dqnfed_flwr.data.store import Arrays
from dqnfed_flwr.errors import DataError


def libsvm_files(paths: Sequence[Path]) -> list[Path]:
    """The files themselves."""
    return need(paths, "LIBSVM text: libsvm:TRAIN or libsvm:TRAIN,TEST")


def read_libsvm(paths: Sequence[Path], options: FormOptions, scratch: Path) -> Arrays:
    """Dense samples of the training file, and of the test file if there is one."""
    from sklearn.datasets import load_svmlight_files

    try:
        loaded = load_svmlight_files([io.BytesIO(unpacked(path)) for path in paths], dtype=np.float64)
    except (ValueError, OverflowError) as error:
        raise DataError(f"data: {', '.join(map(str, paths))}: not LIBSVM text ({error}); see docs/data.md") from error
    values = np.unique(np.concatenate(loaded[1::2]))
    if not np.isfinite(values).all():
        raise DataError(f"data: {', '.join(map(str, paths))}: a label is no finite number; see docs/data.md")
    arrays: dict[str, NDArray[Any]] = {"num_classes": np.array(len(values))}
    for part, matrix, labels in zip(("train", "test"), loaded[::2], loaded[1::2], strict=False):
        rows, features = matrix.shape
        if not rows:
            raise DataError(f"data: {paths[0]}: no sample for {part}ing; if the file is cut short, fetch it again")
        check_dense(rows, features)
        arrays[f"x_{part}"] = matrix.astype(np.float32).toarray()
        arrays[f"y_{part}"] = np.searchsorted(values, labels)
    return arrays
