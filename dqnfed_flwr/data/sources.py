"""What the setting `data` names: `source_of` tells its kind, once, and the `Source` that it gives answers for it.

| kind | name |
|---|---|
| package | digits, scikit-learn's 8x8 images |
| archive | a path ending in .npz |
| public | cifar10, mnist, ..., with or without `torchvision:` before it |
| form | FORM:PATH[,PATH][,key=value...], of the forms of `dqnfed_flwr.data.forms` |
| known | femnist, cinic10, ..., perhaps with options |
| arrays | object:NAME, arrays that the user gave from Python |
| function | module:function of the user's, or object:NAME of what he gave and is no arrays |
| task | no name: data sets that a task of the user's brings, see `Task.source` |
| unknown | anything else |
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Literal

import numpy as np

from dqnfed_flwr.data.dataset import Array, DataSet, TargetForm, as_data_set
from dqnfed_flwr.data.forms import FORMS, NAMED, Files, Named, files_of_known, logger
from dqnfed_flwr.data.store import checksums, data_root, map_kept, map_npz, readable
from dqnfed_flwr.data.torchvision_sets import DOWNLOADS, TORCHVISION_SETS, numbered_from_zero, torchvision_npz
from dqnfed_flwr.data.user import held, is_object, number_of
from dqnfed_flwr.errors import DataError

Kind = Literal["package", "archive", "public", "form", "known", "arrays", "function", "task", "unknown"]
TORCHVISION, TEST = "torchvision:", "test"
FILE, OWN_FUNCTION = "file", "own function"
"""What gives each client samples of its own: the partition `file`, and a function of the user's."""
FINGERPRINT_DIGITS = 16
TABLES = ("csv", "parquet", "libsvm")
MANY_CLASSES, RARE, MANY = 20, 20, 100
"""From so many whole numbers on they are rather a quantity than classes, where a class has fewer samples than the
second; above the third whatever it has."""


@dataclass(frozen=True)
class Source:
    """A name of data, and what kind of name it is."""

    name: str
    kind: Kind

    @property
    def is_code(self) -> bool:
        """Whether samples come from code of the user's, which may give others at every call."""
        return self.kind in ("function", "task")

    def dealt_by(self, partition: str) -> str:
        """What deals its samples out where settings name such a `partition`: that, or `own function`."""
        return OWN_FUNCTION if self.kind == "function" else partition

    def is_of_each(self, partition: str) -> bool:
        """Whether every client has samples of its own, rather than a part of one set."""
        return self.dealt_by(partition) in (FILE, OWN_FUNCTION)

    @property
    def is_decoded(self) -> bool:
        """Whether it is of published files, which are decoded once."""
        return self.kind in ("form", "known")

    @property
    def form(self) -> str:
        """The form of its files where the name says it; empty for other kinds."""
        return self.name.partition(":")[0] if self.kind == "form" else ""

    @property
    def paths(self) -> list[Path]:
        """Paths in the name, as they were given, that of the option `test` last."""
        if self.kind == "archive":
            return [Path(self.name)]
        items = self._items() if self.kind == "form" else ()
        return [Path(path) for _, path in sorted(items, key=lambda item: item[0]) if path is not None]

    def placed(self, place: Callable[[str], str]) -> str:
        """The name with each of its paths replaced by what `place` gives for it."""
        if self.kind == "archive":
            return place(self.name)
        if self.kind != "form" or self.name == f"{self.form}:":
            return self.name
        placed = (text if path is None else text + place(path) for text, path in self._items())
        return f"{self.form}:{','.join(placed)}"

    def _items(self) -> Iterator[tuple[str, str | None]]:
        """What stands between commas: an option and no path, or nothing or `test=` and a path."""
        first, *items = self.name.partition(":")[2].split(",")
        yield "", first
        for item in items:
            key, value = _pair(item)
            if _is_path(item):
                yield "", item
            elif key == TEST and value and FORMS[self.form].test_path:
                yield f"{TEST}=", value
            else:
                yield item, None

    def check(self) -> None:
        """Raise DataError if there can be no such data; whether their files are there is another question."""
        if self.kind != "unknown":
            return
        path = Path(self.name.partition(",")[0])
        if table := next((end for end in path.suffixes if end in (".csv", ".parquet")), ""):
            raise DataError(f"data: {self.name!r} is a table; write {table[1:]}:{path},label=COLUMN")
        raise DataError(
            f"data: unknown set {self.name!r}; allowed: digits, {', '.join(sorted(TORCHVISION_SETS))}, "
            f"{', '.join(NAMED)}, a path ending in .npz, FORM:PATH with one of the forms {', '.join(FORMS)}, or "
            "module:function"
        )

    def files(self) -> Files:
        """The published files; DataError for an unknown option, too many paths, or a set whose files are missing."""
        if self.kind == "form":
            if self.name == f"{self.form}:":
                raise DataError(f"data: {self.name!r} names no file; write {self.form}:PATH")
            options = tuple(sorted(_pair(text) for text, path in self._items() if path is None))
            return Files(self.name, self.form, tuple(path.expanduser().absolute() for path in self.paths), options)
        known, *items = self.name.split(",")
        if further := [item for item in items if _is_path(item)]:
            raise DataError(f"data: {self.name!r}: behind {known} come options, key=value; found {further}")
        return files_of_known(self.name, known, tuple(sorted(map(_pair, items))))

    def npz(self) -> Path | None:
        """The .npz file of the set, made where it is kept here (DataError if it cannot be); None if it has none."""
        if self.kind == "archive":
            return Path(self.name)
        with readable():
            if self.is_decoded:
                return self.files().decoded()
            return torchvision_npz(self.name.removeprefix(TORCHVISION)) if self.kind == "public" else None

    def fetch(self) -> Path:
        """The file of the set, fetched or decoded where that is still to be done; DataError where it cannot be had."""
        if self.kind == "archive" or (path := self.npz()) is None:
            raise DataError(
                f"data: {self.name!r} is nothing to fetch or decode; allowed: {', '.join(sorted(TORCHVISION_SETS))}, "
                f"{', '.join(NAMED)}, or FORM:PATH with one of the forms {', '.join(FORMS)}"
            )
        if self.is_decoded:  # the public sets are checked wherever they are asked for
            map_kept(path)
        return path

    def arrays(self) -> Mapping[str, Array]:
        """The arrays of the set, unchecked; DataError if it is unknown or cannot be read.

        An .npz file holds `x_train` and `y_train`; it may hold `x_test` and `y_test`, `groups_train` and `groups_test`
        (integers naming writer, speaker, ...) with their names in `group_names`, `class_names`, and the single integer
        `num_classes`; `numbered` are columns of a table whose values this file alone numbers, and `only_values` says
        why its targets are no classes.
        """
        self.check()
        if self.kind == "package":
            return _digits()
        if self.kind == "arrays":
            return held("data", self.name)  # type: ignore[no-any-return]
        if (path := self.npz()) is None:
            raise DataError(f"data: {self.name!r} is a function, which gives the part of one client; use load_client")
        arrays = map_npz(path) if self.kind == "archive" else map_kept(path)
        return numbered_from_zero(self.name.removeprefix(TORCHVISION), arrays) if self.kind == "public" else arrays

    def load(self, num_classes: int = 0, targets: TargetForm = "classes") -> DataSet:
        """The whole set, with targets of a form; of so many classes, 0 asks the data.

        DataError if it is unknown, missing or unfit: the text says what was found, what is allowed and what to do.
        """
        arrays = self.arrays()
        data = as_data_set(arrays, self.name, num_classes, targets)
        if targets == "classes" and not num_classes and "num_classes" not in arrays:
            _check_every_class(data)
        return data

    def stamp(self) -> tuple[str, int, int]:
        """Tell a file that was written anew from the one before: path, time of its last change, and size.

        Of an object its number.
        """
        path = self.npz()
        if path is None or not path.is_file():
            return (self.name, number_of("data", self.name), 0)
        status = path.stat()
        return (str(path), status.st_mtime_ns, status.st_size)

    def fingerprint(self) -> str | None:
        """Tell the contents of the set in 16 hexadecimal digits.

        It is made of the names, sizes and CRC-32 of all arrays, which the directory of an .npz file lists: no sample is
        read, and it does not matter where the file lies, when it was written, or whether it is compressed. How samples
        are dealt out is not in it: settings say that. Code of the user's has none. DataError if the set is unknown, or
        its file missing or unfit.
        """
        if self.is_code:
            return None
        if self.kind == "package":
            found = _sums_of_digits()
        else:
            found = checksums(path) if (path := self.npz()) else _sums(self.arrays())
        return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:FINGERPRINT_DIGITS]

    def tell(self, targets: TargetForm) -> None:
        """Warn, a line each, of what its tables hold for a task that wants such targets.

        Those are columns left out, how others are read (which is said while a set is decoded, too), and too many
        classes. DataError where they cannot be read.
        """
        if not self.is_decoded:
            return
        files = self.files()
        there, arrays = files.npz().exists(), self.arrays()
        if there:
            files.tell(arrays)
        if targets != "classes" or files.form not in TABLES:
            return
        y, names = arrays["y_train"], arrays.get("class_names", np.array([]))
        classes = len(np.unique(y)) if y.dtype.kind in "iu" else 0
        whole = all(str(each).lstrip("-").isdecimal() for each in names)
        if whole and (classes > MANY or (classes >= MANY_CLASSES and len(y) < RARE * classes)):
            logger.warning(
                "data: %s: %d different whole numbers are learnt as so many classes, of %d samples; if they are a "
                "quantity, set task to regression",
                *(self.name, classes, len(y)),
            )


def source_of(name: str) -> Source:
    """What a name of data stands for. A name of no kind is found out when it is checked or read."""
    return Source(name, _kind_of(name))


def _kind_of(name: str) -> Kind:
    head, colon, _ = name.partition(":")
    if is_object(name):
        return "arrays" if isinstance(held("data", name), Mapping) else "function"
    if colon and head in FORMS:
        return "form"
    if not colon and name.partition(",")[0] in NAMED:
        return "known"
    if name.endswith(".npz"):
        return "archive"
    if name.startswith(TORCHVISION) or name in TORCHVISION_SETS:
        return "public"
    if name == "digits":
        return "package"
    return "function" if colon else "unknown"


def _check_every_class(data: DataSet) -> None:
    absent = np.flatnonzero(np.bincount(data.y_train, minlength=data.num_classes) == 0)
    if len(absent):
        raise DataError(
            f"data: {data.name}: no training sample of the classes {absent[:10].tolist()} (labels found go from "
            f"{data.y_train.min()} to {data.y_train.max()}); number the classes from 0 without gaps, or state how many "
            "there are in num-classes or in the file"
        )


@dataclass(frozen=True)
class Availability:
    """A set: its name, whether it is there, and where; or what to do to have it."""

    name: str
    state: str
    where: str


def catalogue() -> Iterator[Availability]:
    """All sets with a name, those that come by themselves first."""
    yield Availability("digits", "yes", "comes with scikit-learn")
    with readable():
        yield from (_kept(name) or _public(name) for name in sorted(TORCHVISION_SETS))
        yield from (_kept(name) or _to_be_put(name, named) for name, named in NAMED.items())


def _kept(name: str) -> Availability | None:
    file = data_root() / f"{name}.npz"
    if not file.exists():
        return None
    try:
        checksums(file)
    except DataError:
        return Availability(name, "damaged", f"{file}: delete it, and it is made anew")
    return Availability(name, "yes", str(file))


def _public(name: str) -> Availability:
    begun = any((data_root() / DOWNLOADS / name).glob("*"))
    return Availability(name, "begun" if begun else "no", f"fetched on first use, or by: dqnfed data fetch {name}")


def _to_be_put(name: str, named: Named) -> Availability:
    root = data_root()
    lies = [root / place for _, place in named.candidates if (root / place).exists()]
    if lies:
        return Availability(name, "to be decoded", str(lies[0]))
    return Availability(name, "no", f"put {named.put.format(root=root)}")


def _is_path(item: str) -> bool:
    """Whether what stands between commas is a path and no option."""
    return "=" not in item or "/" in item.partition("=")[0]


def _pair(item: str) -> tuple[str, str]:
    key, _, value = item.partition("=")
    return key.strip(), value.strip()


def _digits() -> dict[str, Array]:
    try:
        digits = import_module("sklearn.datasets").load_digits()
    except ImportError as error:
        raise DataError("data: digits come with scikit-learn, which is not installed; install scikit-learn") from error
    return {"x_train": np.rint(digits.images * (255 / 16)).astype(np.uint8), "y_train": digits.target}


@cache
def _sums_of_digits() -> dict[str, tuple[int, int]]:
    return _sums(_digits())


def _sums(arrays: Mapping[str, Array]) -> dict[str, tuple[int, int]]:
    """Bytes and CRC-32 of arrays that lie in no file."""
    contents = {key: values.tobytes() for key, values in arrays.items()}
    return {key: (len(content), zlib.crc32(content)) for key, content in contents.items()}
