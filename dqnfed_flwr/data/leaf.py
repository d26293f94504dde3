"""Samples by user in json: LEAF's files, and plays as one text a role.

The form `leaf` has files with `users` and `user_data`, in the folders train/ and test/: Caldas et al., "LEAF: a
benchmark for federated settings" (2018). Three kinds of samples are known by their look: 784 numbers from 0 to 1 are a
28x28 image (FEMNIST), a text of 80 characters is a window with the next character as its label (Shakespeare), any other
list of numbers is features (Synthetic). A user is one group. Where a file has `num_samples`, it must be right. LEAF's
own files of Shakespeare's test part count the 79 windows between a user's two parts, which it leaves out; that is let
pass.

The form `roles` is a json file (plain, .xz, .gz or .bz2) that maps each role to all that it says. It is cut as LEAF
cuts its own edition. Line ends and runs of spaces become one space, and every position of the text is a sample
(`stride` makes it every n-th). A role's last fifth (`test`, in percent) is its test part. A gap of the length of a
window keeps it apart from the training part, so that no character is both trained and tested on. A role is one group.
Roles too short to have both parts are left out.
"""

from __future__ import annotations

import json
import math
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.data.forms import FormOptions, Samples, by_client, need, number, unpacked
from dqnfed_flwr.data.store import Arrays, console
from dqnfed_flwr.errors import DataError

LENGTH = 80
ALPHABET = "\n !\"&'(),-." + string.digits + ":;>?" + string.ascii_uppercase + "[]" + string.ascii_lowercase + "}"
"""LEAF's 80 characters; the place of a character is its token and its class."""

Characters = NDArray[np.int8]
_UNKNOWN = -1
_CODES = np.full(128, _UNKNOWN, dtype=np.int8)
_CODES[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
PARTS = ("train", "test")
_FEMNIST = (28, 62)  # side of an image, classes


def tokens(text: str) -> Characters:
    """Places in `ALPHABET` [N]; a character that it lacks counts as a space."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    found: Characters = _CODES[np.minimum(codes, 127)]  # which stands for none of the alphabet
    return np.where(found == _UNKNOWN, _CODES[ord(" ")], found).astype(np.int8)


def windows(text: str) -> tuple[Characters, Characters]:
    """All runs of `LENGTH` characters [N, LENGTH], a view, and what follows each [N]; N is 0 for shorter text."""
    codes = tokens(text)
    if len(codes) <= LENGTH:
        return np.empty((0, LENGTH), np.int8), np.empty(0, np.int8)
    return np.lib.stride_tricks.sliding_window_view(codes, LENGTH)[:-1], codes[LENGTH:]


def leaf_files(paths: Sequence[Path]) -> list[Path]:
    """All json files of both parts."""
    folders = need([paths[0] / part for part in PARTS], "the folders train/ and test/ that LEAF's preprocess.sh writes")
    found = [sorted(folder.glob("*.json")) for folder in folders]
    for folder, jsons in zip(folders, found, strict=True):
        if not jsons:
            raise DataError(f"data: no .json file in {folder}; run LEAF's preprocess.sh, or name the folder above")
    return [file for jsons in found for file in jsons]


def read_leaf(paths: Sequence[Path], options: FormOptions, scratch: Path) -> Arrays:
    """Samples in the order of files and users; group g is the user `group_names[g]`."""
    parts = {part: dict(_users(paths[0] / part)) for part in PARTS}
    for part, users in parts.items():
        if not users:
            raise DataError(f"data: no sample in {paths[0] / part}; LEAF's preprocess.sh has not run to its end")
        samples = sum(len(y) for _, y in users.values())
        console().print(f"{paths[0] / part}: users: {len(users):,}, samples: {samples:,}", markup=False, soft_wrap=True)
        shapes = {x.shape[1:] for x, _ in users.values()}
        if len(shapes) > 1:
            raise DataError(f"data: samples of the shapes {sorted(shapes)} in {paths[0] / part}; keep one set a folder")
    arrays = by_client(parts, np.int32)
    if arrays["x_train"].dtype == np.int8:
        arrays["num_classes"] = np.array(len(ALPHABET))
    if arrays["x_train"].dtype == np.uint8:
        arrays["num_classes"] = np.array(_FEMNIST[1])
    return arrays


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
    """Compare `num_samples`, where it is given, with the labels that are there; ValueError if they differ."""
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
    """One user's samples and labels; ValueError if they are of no known kind, or differ in number."""
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
    """Labels as whole numbers [N], which LEAF's Synthetic may write with a decimal point; ValueError for any other."""
    found = np.asarray(y, dtype=np.float64)
    if found.ndim != 1 or not ((found >= 0) & (found < 2**53) & (found == np.floor(found))).all():
        raise ValueError("labels are not whole numbers from 0, one a sample")
    return found.astype(np.int64)


def roles_files(paths: Sequence[Path]) -> list[Path]:
    """The file itself."""
    return need(paths, "a json file that maps each role to its text")


def read_roles(paths: Sequence[Path], options: FormOptions, scratch: Path) -> Arrays:
    """Windows of all roles; group g is the role `group_names[g]`."""
    percent, stride = number(options, "test", 20, least=1), number(options, "stride", 1, least=1)
    if percent > 90:
        raise DataError(f"data: test={percent}; give the percentage of a role that is tested on, from 1 to 90")
    roles = _roles(paths[0])
    parts: dict[str, dict[str, Samples]] = {part: {} for part in PARTS}
    for name, text in sorted(roles.items()):
        for part, samples in _split_role(" ".join(text.split()), percent, stride):
            parts[part][name] = samples
    if not parts["train"]:
        raise DataError(f"data: {paths[0]}: no role is long enough; one needs some 180 characters for both parts")
    return {**by_client(parts, np.int32), "num_classes": np.array(len(ALPHABET))}


def _roles(path: Path) -> Mapping[str, str]:
    try:
        roles = json.loads(unpacked(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"data: {path} cannot be read as json ({error}); fetch the file again") from error
    if not isinstance(roles, dict) or not all(isinstance(text, str) for text in roles.values()):
        raise DataError(f"data: {path}: expected one json object that maps each role to its text")
    return roles


def _split_role(text: str, percent: int, stride: int) -> Iterator[tuple[str, Samples]]:
    """Training and test part of a role; nothing where one would be empty."""
    x, y = windows(text)
    tested = max(1, len(y) * percent // 100)
    trained = len(y) - tested - LENGTH
    if trained < 1:
        return
    yield "train", (x[:trained:stride], y[:trained:stride])
    yield "test", (x[-tested::stride], y[-tested::stride])
