"""Speech by speaker: a json file (plain, .xz, .gz or .bz2) that maps each role to all that it says.

As LEAF does with its own edition, line ends and runs of spaces become one space, every position of the text is a
sample (`stride` makes it every n-th), and a role's last fifth (`test`, in percent) is its test part, apart from its
training part by the length of a window, so that no character is both trained and tested on. A role is one group; those
too short to have both parts are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.data.forms import Options, need, number
from dqnfed_flwr.data.packed import unpacked
from dqnfed_flwr.data.store import Arrays
from dqnfed_flwr.data.text import ALPHABET, LENGTH, windows
from dqnfed_flwr.errors import DataError


def files(paths: Sequence[Path]) -> list[Path]:
    """The file itself."""
    return need(paths, "a json file that maps each role to its text")


def read(paths: Sequence[Path], options: Options, scratch: Path) -> Arrays:
    """Windows of all roles; group g is the role `group_names[g]`."""
    percent, stride = number(options, "test", 20, least=1), number(options, "stride", 1, least=1)
    if percent > 90:
        raise DataError(f"data: test={percent}; give the percentage of a role that is tested on, from 1 to 90")
    roles = _roles(paths[0])
    parts: dict[str, list[NDArray[Any]]] = {f"{kind}_{part}": [] for kind in "xyg" for part in ("train", "test")}
    names: list[str] = []
    for name, text in sorted(roles.items()):
        split = list(_split(" ".join(text.split()), percent, stride))
        if not split:
            continue
        for part, x, y in split:
            parts[f"x_{part}"].append(x)
            parts[f"y_{part}"].append(y)
            parts[f"g_{part}"].append(np.full(len(y), len(names), dtype=np.int32))
        names.append(name)
    if not names:
        raise DataError(f"data: {paths[0]}: no role is long enough; one needs some 180 characters for both parts")
    return _joined(parts, names)


def _roles(path: Path) -> Mapping[str, str]:
    try:
        roles = json.loads(unpacked(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"data: {path} cannot be read as json ({error}); fetch the file again") from error
    if not isinstance(roles, dict) or not all(isinstance(text, str) for text in roles.values()):
        raise DataError(f"data: {path}: expected one json object that maps each role to its text")
    return roles


def _split(text: str, percent: int, stride: int) -> Iterator[tuple[str, NDArray[Any], NDArray[Any]]]:
    """Training and test part of a role; nothing where one would be empty."""
    x, y = windows(text)
    tested = max(1, len(y) * percent // 100)
    trained = len(y) - tested - LENGTH
    if trained < 1:
        return
    yield "train", x[:trained:stride], y[:trained:stride]
    yield "test", x[-tested::stride], y[-tested::stride]


def _joined(parts: Mapping[str, list[NDArray[Any]]], names: Sequence[str]) -> Arrays:
    arrays = {key.replace("g_", "groups_"): np.concatenate(pieces) for key, pieces in parts.items()}
    return {**arrays, "group_names": np.array(names), "num_classes": np.array(len(ALPHABET))}
