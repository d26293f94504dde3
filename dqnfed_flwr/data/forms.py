"""Forms of published files, the sets that have a name of their own, and what the readers of all forms share.

| form | files |
|---|---|
| leaf | json of LEAF: a folder with train/ and test/ |
| tff | HDF5 of TensorFlow Federated: a folder, or the training and the test file |
| roles | one json file: speaker to all that he says |
| folder | a folder of images a class, in train/ and test/ |
| clothing1m | key files and images of Clothing1M |
| libsvm | text of LIBSVM: one file, or a training and a test file |
| csv, parquet | a table, whose column `label` is to be learnt |
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dqnfed_flwr.errors import DataError

FormOptions = Mapping[str, str]
Samples = tuple[NDArray[Any], NDArray[Any]]
MOST_BYTES = 8 * 2**30
"""Of dense rows, which are held in memory while a set is decoded."""
MOST_UNPACKED = 4 * 2**30
"""Bytes to which a packed file may unpack."""
_OPEN: Mapping[str, Callable[[Path], Any]] = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}


@dataclass(frozen=True)
class FileForm:
    """How published files of one form are read.

    Attributes
    ----------
    module : str
        Under `dqnfed_flwr.data`, with the functions NAME_files and read_NAME for the form NAME; see `sources.Source`.
    options : tuple[str, ...]
        Keys that may follow the path.
    most_paths : int
        Paths that may be given.
    numbers_classes : bool
        Whether classes are numbered by what the files hold, so that two devices may number them otherwise.
    test_path : bool
        Whether the second path, of the test part, may be given as the option `test` as well.
    """

    module: str
    options: tuple[str, ...] = ()
    most_paths: int = 1
    numbers_classes: bool = False
    test_path: bool = False


_OF_TABLES = ("label", "target", "classes", "group", "drop", "test")
FORMS = {
    "leaf": FileForm("leaf"),
    "tff": FileForm("tff", ("vocabulary", "length", "users", "sentences"), 2),
    "roles": FileForm("leaf", ("test", "stride")),
    "folder": FileForm("images", ("size", "train", "test"), numbers_classes=True),
    "clothing1m": FileForm("images", ("size", "samples")),
    "libsvm": FileForm("libsvm", (), 2, numbers_classes=True),
    "csv": FileForm("tables", _OF_TABLES, 2, test_path=True),
    "parquet": FileForm("tables", _OF_TABLES, 2, test_path=True),
}


@dataclass(frozen=True)
class Named:
    """A set with a name of its own.

    Attributes
    ----------
    candidates : tuple[tuple[str, str], ...]
        Form and place under the data root; the first whose place exists is read.
    put : str
        Which files to put where, for the error text.
    """

    candidates: tuple[tuple[str, str], ...]
    put: str


NAMED = {
    "femnist": Named(
        (("tff", "femnist/fed_emnist_train.h5"), ("leaf", "femnist")),
        "LEAF's folders train/ and test/ of json files (or fed_emnist_train.h5 and fed_emnist_test.h5 of TensorFlow "
        "Federated) into {root}/femnist",
    ),
    "shakespeare": Named(
        (("leaf", "shakespeare"), ("roles", "shakespeare.json"), ("roles", "shakespeare_roles.json.xz")),
        "LEAF's folders train/ and test/ of json files into {root}/shakespeare, or a file that maps each role to its "
        "text to {root}/shakespeare.json",
    ),
    "tiny-imagenet": Named(
        (("folder", "tiny-imagenet-200"),),
        "the unpacked tiny-imagenet-200.zip, with train/ and val/, into {root}/tiny-imagenet-200",
    ),
    "cinic10": Named(
        (("folder", "cinic-10"),), "the unpacked CINIC-10.tar.gz, with train/, valid/ and test/, into {root}/cinic-10"
    ),
    "clothing1m": Named(
        (("clothing1m", "clothing1m"),),
        "the key files (noisy_train_key_list.txt, noisy_label_kv.txt, clean_test_key_list.txt, clean_label_kv.txt) and "
        "images/ of Clothing1M, which its authors give on request, into {root}/clothing1m",
    ),
    "stackoverflow": Named(
        (("tff", "stackoverflow/stackoverflow_train.h5"),),
        "stackoverflow_train.h5, stackoverflow_test.h5 and stackoverflow.word_count of TensorFlow Federated into "
        "{root}/stackoverflow",
    ),
}


def by_client(parts: Mapping[str, Mapping[str, Samples]], numbers: DTypeLike) -> dict[str, NDArray[Any]]:
    """Join samples and labels, given by part and client; group g, of dtype `numbers`, is client `group_names[g]`."""
    names = sorted({name for clients in parts.values() for name in clients})
    places = {name: place for place, name in enumerate(names)}
    arrays: dict[str, NDArray[Any]] = {"group_names": np.array(names)}
    for part, clients in parts.items():
        owners = np.array([places[name] for name in clients], dtype=numbers)
        arrays[f"x_{part}"] = np.concatenate([x for x, _ in clients.values()])
        arrays[f"y_{part}"] = np.concatenate([y for _, y in clients.values()])
        arrays[f"groups_{part}"] = np.repeat(owners, [len(y) for _, y in clients.values()])
    return arrays


def number(options: FormOptions, key: str, default: int, *, least: int = 0, most: int = 10**9) -> int:
    """Read an option that is a whole number; DataError if it is none, or not from `least` to `most`."""
    text = options.get(key, str(default))
    if not (text.isdecimal() and len(text) <= len(str(most)) and least <= int(text) <= most):
        raise DataError(f"data: {key}={text!r}; give a whole number from {least} to {most}, such as {key}={default}")
    return int(text)


def check_dense(rows: int, features: int) -> None:
    """Raise DataError where so many float32 rows are more than `MOST_BYTES`."""
    if 4 * rows * features > MOST_BYTES:
        raise DataError(
            f"data: {rows} samples of {features} features are {4 * rows * features / 2**30:.0f} GiB as dense rows, "
            f"more than {MOST_BYTES // 2**30}; choose features or samples first"
        )


def need(paths: Sequence[Path], what: str) -> list[Path]:
    """These paths, all of which must exist; DataError names those that do not, and `what` they are."""
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise DataError(f"data: missing {', '.join(missing)}; needed is {what}")
    return list(paths)


def unpacked(path: Path) -> bytes:
    """All bytes of a file; of .xz, .gz and .bz2 those that were packed, at most `MOST_UNPACKED`.

    DataError if it is unreadable, cut short, or larger.
    """
    packed = path.suffix in _OPEN
    try:
        with _OPEN[path.suffix](path) if packed else path.open("rb") as file:
            content: bytes = file.read(MOST_UNPACKED + 1 if packed else -1)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"data: {path} cannot be read ({error}); if it is cut short, fetch it again") from error
    if packed and len(content) > MOST_UNPACKED:
        raise DataError(
            f"data: {path} unpacks to more than {MOST_UNPACKED:,} bytes; if it is right, unpack it yourself"
        )
    return content


def text_lines(path: Path) -> list[str]:
    """Lines of a file of UTF-8 text, but those that hold nothing but spaces; DataError if it is unreadable."""
    try:
        return [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"data: {path} cannot be read as UTF-8 text ({error}); fetch it again") from error
