"""Data sets named by the form of their published files: `FORM:PATH[,PATH][,key=value...]`, or a name that implies it.

The forms are those of `dqnfed_flwr.data.forms`. Sets are decoded once, checked, and kept as .npz files under
`store.data_root()`, from where every process maps them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from operator import and_
from pathlib import Path
from types import ModuleType

import numpy as np

from dqnfed_flwr.data.dataset import as_data_set
from dqnfed_flwr.data.forms import FORMS, NAMED
from dqnfed_flwr.data.store import Arrays, console, data_root, kept
from dqnfed_flwr.errors import DataError

READABLE, OWN = 0o644, 0o600
DECODED, TEST = "decoded", "test"
_VERSION = 3  # of the decoded form; a higher one makes kept files anew


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
        states = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in self.files()]
        return hashlib.sha256(repr((_VERSION, self.form, states, self.options)).encode()).hexdigest()[:16]

    def files(self) -> list[Path]:
        """Files and folders whose change means that the set changed; DataError where one is missing."""
        found: list[Path] = getattr(self._module, f"{self.form}_files")(self.paths)
        return found

    def read(self, scratch: Path) -> Arrays:
        """The decoded set; large arrays may lie in the empty folder `scratch`."""
        arrays: Arrays = getattr(self._module, f"read_{self.form}")(self.paths, dict(self.options), scratch)
        return arrays

    @property
    def _module(self) -> ModuleType:
        return import_module(f"dqnfed_flwr.data.{FORMS[self.form].module}")


def is_source(name: str) -> bool:
    """Tell whether `name` is one of a form or of `NAMED`."""
    head, colon, _ = name.partition(":")
    return head in FORMS if colon else name.partition(",")[0] in NAMED


def paths_in(name: str) -> list[Path]:
    """Paths that the name of a set holds, as they were given: an .npz file, or those of `FORM:PATH`."""
    if name.endswith(".npz"):
        return [Path(name)]
    form, colon, rest = name.partition(":")
    if not colon or form not in FORMS:
        return []
    first, *items = rest.split(",")
    return [Path(item) for item in (first, *_further(items), *_tested(form, items))]


def with_paths(name: str, placed: Callable[[str], str]) -> str:
    """The name of a set with each of its paths replaced by what `placed` gives for it."""
    if name.endswith(".npz"):
        return placed(name)
    form, colon, rest = name.partition(":")
    if not colon or form not in FORMS or not rest:
        return name
    first, *items = rest.split(",")
    paths, tests = _further(items), FORMS[form].test_path

    def replaced(item: str) -> str:
        key, value = _pair(item)
        if tests and key == TEST and value:
            return f"{TEST}={placed(value)}"
        return placed(item) if item in paths else item

    return ",".join([f"{form}:{placed(first)}", *map(replaced, items)])


def source_npz(name: str) -> Path:
    """Path of the decoded set, decoded on first use; DataError if files are missing or unfit, or options unknown."""
    source = parse(name)
    target = source.npz()
    if target.exists():
        return target
    modes = [file.stat().st_mode for file in source.files()]
    console().print(f"{name}: decoding, once, into {target}", markup=False, soft_wrap=True)

    def decoded(scratch: Path) -> Arrays:
        arrays = source.read(scratch)
        numbers = np.issubdtype(arrays["y_train"].dtype, np.floating)  # which a task of another kind may ask for
        as_data_set(arrays, name, targets="values" if numbers else "classes")
        return arrays

    return kept(target, decoded, reduce(and_, modes, READABLE) | OWN)  # nobody reads it who could not read the files


def parse(name: str) -> Source:
    """Take `FORM:PATH[,PATH][,key=value...]`, or a name with options, apart.

    DataError for an unknown option, too many paths, or a named set whose files are missing.
    """
    head, *items = name.split(",")
    further = _further(items)
    options = tuple(sorted(_pair(item) for item in items if item not in further))
    form, colon, path = head.partition(":")
    if not colon:
        if further:
            raise DataError(f"data: {name!r}: behind {head} come options, key=value; found {further}")
        source = _named(head, options)
    elif not path:
        raise DataError(f"data: {name!r} names no file; write {form}:PATH")
    else:
        tested = _tested(form, items)
        places = tuple(Path(place).expanduser().absolute() for place in (path, *further, *tested))
        source = Source(form, places, tuple(pair for pair in options if not tested or pair[0] != TEST))
    _check(source, name)
    return source


def _further(items: Sequence[str]) -> list[str]:
    """What follows the first path and is no option."""
    return [item for item in items if "=" not in item or "/" in item.partition("=")[0]]


def _tested(form: str, items: Sequence[str]) -> list[str]:
    """The path of the test part where it is given as an option."""
    pairs = [_pair(item) for item in items] if FORMS[form].test_path else []
    return [value for key, value in pairs if key == TEST and value]


def _pair(item: str) -> tuple[str, str]:
    key, _, value = item.partition("=")
    return key.strip(), value.strip()


def _check(source: Source, name: str) -> None:
    form = FORMS[source.form]
    keys = [key for key, _ in source.options]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise DataError(f"data: {name!r}: {', '.join(twice)} is given twice")
    unknown = sorted(set(keys) - set(form.options))
    if unknown:
        raise DataError(
            f"data: {name!r}: unknown option {', '.join(unknown)}; {source.form} knows "
            f"{', '.join(form.options) or 'none'}"
        )
    if len(set(source.paths)) < len(source.paths):
        raise DataError(f"data: {name!r} names a file twice; what is tested on must not be trained on")
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
