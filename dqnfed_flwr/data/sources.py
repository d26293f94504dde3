"""Data sets named by the form of their published files: `FORM:PATH[,PATH][,key=value...]`, or a name that implies it.

| form | files |
|---|---|
| leaf | json of LEAF: a folder with train/ and test/ |
| tff | HDF5 of TensorFlow Federated: a folder, or the training and the test file |
| roles | one json file: speaker to all that he says |
| folder | a folder of images a class, in train/ and test/ |
| clothing1m | key files and images of Clothing1M |
| libsvm | text of LIBSVM: one file, or a training and a test file |

Sets are decoded once and kept as .npz files under `store.data_root()`, from where every process maps them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from dqnfed_flwr.data.store import Arrays, console, data_root, kept
from dqnfed_flwr.errors import DataError

Options = Mapping[str, str]
DECODED = "decoded"
_VERSION = 1  # of the decoded form; a higher one makes kept files anew


@dataclass(frozen=True)
class Form:
    """How published files of one form are read.

    Attributes
    ----------
    module : str
        Under `dqnfed_flwr.data`, with the functions of `Reader`.
    options : tuple[str, ...]
        Keys that may follow the path.
    most_paths : int
        Paths that may be given.
    """

    module: str
    options: tuple[str, ...] = ()
    most_paths: int = 1


FORMS = {
    "leaf": Form("leaf"),
    "tff": Form("tff", ("vocabulary", "length", "users", "sentences"), 2),
    "roles": Form("roles", ("test", "stride")),
    "folder": Form("folder", ("size", "train", "test")),
    "clothing1m": Form("clothing1m", ("size", "samples")),
    "libsvm": Form("libsvm", (), 2),
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


class Reader(Protocol):
    """What the module of a form offers."""

    def files(self, paths: Sequence[Path]) -> list[Path]:
        """Name the files or folders whose change means that the set changed; DataError where one is missing."""

    def read(self, paths: Sequence[Path], options: Options, scratch: Path) -> Arrays:
        """Decode the set."""


@dataclass(frozen=True)
class Source:
    """A name, taken apart."""

    form: str
    paths: tuple[Path, ...]
    options: tuple[tuple[str, str], ...] = ()
    name: str = ""

    def npz(self) -> Path:
        """Where the decoded set is or will be kept."""
        if self.name and not self.options:
            return data_root() / f"{self.name}.npz"
        stem = self.name or self.paths[0].stem
        return data_root() / DECODED / f"{self.form}-{stem}-{self._digest()}.npz"

    def _digest(self) -> str:
        states = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in self.reader.files(self.paths)]
        return hashlib.sha256(repr((_VERSION, self.form, states, self.options)).encode()).hexdigest()[:16]

    @property
    def reader(self) -> Reader:
        """The module of the form."""
        return cast("Reader", import_module(f"dqnfed_flwr.data.{FORMS[self.form].module}"))


def is_source(name: str) -> bool:
    """Tell whether `name` is one of a form or of `NAMED`."""
    head, colon, _ = name.partition(":")
    return head in FORMS if colon else name.partition(",")[0] in NAMED


def paths_in(name: str) -> list[Path]:
    """Paths that the name of a set holds, as they were given: an .npz file, or those of `FORM:PATH`."""
    if name.endswith(".npz"):
        return [Path(name)]
    form, colon, rest = name.partition(":")
    return [Path(item) for item in rest.split(",") if "=" not in item] if colon and form in FORMS else []


def source_npz(name: str) -> Path:
    """Path of the decoded set, decoded on first use.

    Raises
    ------
    DataError
        If files are missing or unfit, or an option is unknown: the text says which, and what to do.
    """
    source = parse(name)
    target = source.npz()
    if target.exists():
        return target
    reader = source.reader
    reader.files(source.paths)
    console().print(f"{name}: decoding, once, into {target}", markup=False, soft_wrap=True)
    return kept(target, lambda scratch: reader.read(source.paths, dict(source.options), scratch))


def parse(name: str) -> Source:
    """Take `FORM:PATH[,PATH][,key=value...]`, or a name with options, apart.

    Raises
    ------
    DataError
        For an unknown option, too many paths, or a named set whose files are missing.
    """
    head, *items = name.split(",")
    options = tuple(sorted(_pair(item) for item in items if "=" in item))
    further = [item for item in items if "=" not in item]
    form, colon, path = head.partition(":")
    if not colon:
        if further:
            raise DataError(f"data: {name!r}: behind {head} come options, key=value; found {further}")
        source = _named(head, options)
    elif not path:
        raise DataError(f"data: {name!r} names no file; write {form}:PATH")
    else:
        places = tuple(Path(place).expanduser().absolute() for place in (path, *further))
        source = Source(form, places, options)
    _check(source, name)
    return source


def _pair(item: str) -> tuple[str, str]:
    key, _, value = item.partition("=")
    return key.strip(), value.strip()


def _check(source: Source, name: str) -> None:
    form = FORMS[source.form]
    unknown = sorted({key for key, _ in source.options} - set(form.options))
    if unknown:
        raise DataError(
            f"data: {name!r}: unknown option {', '.join(unknown)}; {source.form} knows "
            f"{', '.join(form.options) or 'none'}"
        )
    if len(source.paths) > form.most_paths:
        raise DataError(
            f"data: {name!r}: {source.form} takes {form.most_paths} path(s), found {len(source.paths)}; a path must "
            "hold no comma"
        )


def _named(name: str, options: tuple[tuple[str, str], ...]) -> Source:
    """The first candidate whose files lie there; any where the decoded set is kept already."""
    root, named = data_root(), NAMED[name]
    for form, place in named.candidates:
        if (root / place).exists():
            return Source(form, (root / place,), options, name)
    form, place = named.candidates[0]
    source = Source(form, (root / place,), options, name)
    if not options and source.npz().exists():
        return source
    raise DataError(
        f"data: {name} is not in {root}: put {named.put.format(root=root)}; or set DQNFED_DATA to a folder that has "
        f"them; or name the files, data={form}:PATH"
    )


def number(options: Options, key: str, default: int, *, least: int = 0) -> int:
    """Read an option that is a whole number.

    Raises
    ------
    DataError
        If it is none, or below `least`.
    """
    text = options.get(key, str(default))
    if not text.isdigit() or int(text) < least:
        raise DataError(f"data: {key}={text!r}; give a whole number from {least}, such as {key}={default}")
    return int(text)


def need(paths: Sequence[Path], what: str) -> list[Path]:
    """These paths, all of which must exist.

    Raises
    ------
    DataError
        Naming those that do not, and `what` they are.
    """
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise DataError(f"data: missing {', '.join(missing)}; needed is {what}")
    return list(paths)
