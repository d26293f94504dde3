"""The json form of LEAF: files with `users` and `user_data`, in the folders train/ and test/.

Caldas et al., "LEAF: a benchmark for federated settings" (2018). Three kinds of samples are known by their look: 784
numbers from 0 to 1 are a 28x28 image (FEMNIST), a text of 80 characters is a window with the next character as its
label (Shakespeare), any other list of numbers is features (Synthetic). A user is one group.

Where a file has `num_samples`, it must be right. LEAF's own files of Shakespeare's test part count the 79 windows
between a user's two parts, which it leaves out; that is let pass.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.data.forms import Options, need
from dqnfed_flwr.data.store import Arrays, console
from dqnfed_flwr.data.text import ALPHABET, LENGTH, tokens
from dqnfed_flwr.errors import DataError

PARTS = ("train", "test")
Samples = tuple[NDArray[Any], NDArray[Any]]
_FEMNIST = (28, 62)  # side of an image, classes


def files(paths: Sequence[Path]) -> list[Path]:
    """All json files of both parts."""
    folders = need([paths[0] / part for part in PARTS], "the folders train/ and test/ that LEAF's preprocess.sh writes")
    found = [sorted(folder.glob("*.json")) for folder in folders]
    for folder, jsons in zip(folders, found, strict=True):
        if not jsons:
            raise DataError(f"data: no .json file in {folder}; run LEAF's preprocess.sh, or name the folder above")
    return [file for jsons in found for file in jsons]


def read(paths: Sequence[Path], options: Options, scratch: Path) -> Arrays:
    """Samples in the order of files and users; group g is the user `group_names[g]`."""
    parts = {part: list(_users(paths[0] / part)) for part in PARTS}
    names = sorted({user for users in parts.values() for user, _ in users})
    numbers = {user: number for number, user in enumerate(names)}
    arrays: dict[str, NDArray[Any]] = {"group_names": np.array(names)}
    for part, users in parts.items():
        if not users:
            raise DataError(f"data: no sample in {paths[0] / part}; LEAF's preprocess.sh has not run to its end")
        samples = sum(len(y) for _, (_, y) in users)
        console().print(f"{paths[0] / part}: users: {len(users):,}, samples: {samples:,}", markup=False, soft_wrap=True)
        shapes = {x.shape[1:] for _, (x, _) in users}
        if len(shapes) > 1:
            raise DataError(f"data: samples of the shapes {sorted(shapes)} in {paths[0] / part}; keep one set a folder")
        arrays[f"x_{part}"] = np.concatenate([x for _, (x, _) in users])
        arrays[f"y_{part}"] = np.concatenate([y for _, (_, y) in users])
        arrays[f"groups_{part}"] = np.concatenate(
            [np.full(len(y), numbers[user], dtype=np.int32) for user, (_, y) in users]
        )
    return {**arrays, **_classes(arrays)}


def _classes(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    x = arrays["x_train"]
    if x.dtype == np.int8:
        return {"num_classes": np.array(len(ALPHABET))}
    if x.dtype == np.uint8:
        return {"num_classes": np.array(_FEMNIST[1])}
    return {}


def _users(folder: Path) -> Iterator[tuple[str, Samples]]:
    """Users who have samples, each of whom is in one file of the part."""
    places: dict[str, Path] = {}
    for file in sorted(folder.glob("*.json")):
        try:
            content = json.loads(file.read_bytes())
            _check_counts(content, folder.name)
            for user in content["users"]:
                if str(user) in places:
                    raise DataError(
                        f"data: user {user!r} is twice in {folder}: in {places[str(user)]} and in {file}; a user is in "
                        "a part once: delete the copy, or keep one set a folder"
                    )
                places[str(user)] = file
                given = content["user_data"][user]
                if given["y"]:
                    yield str(user), _samples(given["x"], given["y"])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise DataError(
                f"data: {file} is not of LEAF's form, users and user_data with x and y ({error!r}); if it is cut "
                "short, fetch or make it again"
            ) from error


def _check_counts(content: Mapping[str, Any], part: str) -> None:
    """Compare `num_samples`, where it is given, with the labels that are there.

    Raises
    ------
    ValueError
        If they differ.
    """
    users, counts = content["users"], content.get("num_samples")
    if counts is None:
        return
    if len(counts) != len(users):
        raise ValueError(f"{len(users)} users, and num_samples of {len(counts)}")
    for user, count in zip(users, counts, strict=True):
        labels = content["user_data"][user]["y"]
        left_out = LENGTH - 1 if part == "test" and labels and isinstance(labels[0], str) else 0
        if count not in (len(labels), len(labels) + left_out):
            raise ValueError(f"user {user!r} has {len(labels)} samples, num_samples says {count}")


def _samples(x: Sequence[Any], y: Sequence[Any]) -> Samples:
    """One user's samples and labels.

    Raises
    ------
    ValueError
        If they are of no known kind, or differ in number.
    """
    if len(x) != len(y):
        raise ValueError(f"{len(x)} samples and {len(y)} labels")
    if isinstance(x[0], str):
        if {len(text) for text in x} != {LENGTH} or {len(text) for text in y} != {1}:
            raise ValueError(f"texts are not windows of {LENGTH} characters with one character that follows")
        return tokens("".join(x)).reshape(-1, LENGTH), tokens("".join(y))
    values, labels = np.array(x, dtype=np.float32), _class_numbers(y)
    side, classes = _FEMNIST
    if values.shape[1:] == (side * side,):
        if not (values.min() >= 0 and values.max() <= 1 and labels.max() < classes):
            raise ValueError(f"784 values from {values.min()} to {values.max()}, labels up to {labels.max()}")
        return np.rint(values * 255).astype(np.uint8).reshape(-1, side, side), labels
    if values.ndim != 2 or not math.isfinite(float(values.sum())):
        raise ValueError(f"samples of shape {values.shape[1:]} with finite numbers asked for")
    return values, labels


def _class_numbers(y: Sequence[Any]) -> NDArray[np.int64]:
    """Labels as whole numbers [N]; LEAF's Synthetic may write them with a decimal point.

    Raises
    ------
    ValueError
        If one is no whole number from 0.
    """
    found = np.asarray(y, dtype=np.float64)
    if found.ndim != 1 or not ((found >= 0) & (found < 2**53) & (found == np.floor(found))).all():
        raise ValueError("labels are not whole numbers from 0, one a sample")
    return found.astype(np.int64)
