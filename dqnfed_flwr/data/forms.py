"""Forms of published files, the sets that have a name of their own, and how the files of a set are decoded and kept.

| form | files |
|---|---|
| leaf | json of LEAF: a folder with train/ and test/ |
| tff | HDF5 of TensorFlow Federated: a folder, or the training and the test file |
| roles | one json file: speaker to all that he says |
| folder | a folder of images a class, in train/ and test/ |
| clothing1m | key files and images of Clothing1M |
| libsvm | text of LIBSVM: one file, or a training and a test file |
| csv, parquet | a table, whose column `label` is to be learnt |

Sets are decoded once, checked, and kept as .npz files under `store.data_root()`, from where every process maps them.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from importlib import import_module
from operator import and_
from pathlib import Path
from types import ModuleType

import numpy as np

from dqnfed_flwr.data.dataset import as_data_set
from dqnfed_flwr.data.store import Arrays, console, data_root, kept
from dqnfed_flwr.errors import DataError

logger = logging.getLogger("flwr")
READABLE, OWN = 0o644, 0o600
DECODED = "decoded"
_VERSION = 5  # of the decoded form; a higher one makes kept files anew


@dataclass(frozen=True)
class FileForm:
    """How published files of one form are read.

    Its module under `dqnfed_flwr.data` has the functions NAME_files and read_NAME for the form NAME; see `Files`.
    """

    module: str
    options: tuple[str, ...] = ()  # keys that may follow the path
    most_paths: int = 1
    numbers_classes: bool = False  # by what the files hold, so that two devices may number them otherwise
    test_path: bool = False  # whether the path of the test part may be given as the option `test` as well


_OF_TABLES = ("label", "target", "classes", "group", "drop", "keep", "test")
FORMS = {
    "leaf": FileForm("leaf", ("size", "words")),
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
    """A set with a name of its own: where its files may lie, and which to put where."""

    candidates: tuple[tuple[str, str], ...]  # form and place under the data root; the first that exists is read
    put: str
    classes: Mapping[str, int] = field(default_factory=dict)  # by form, where files may lack some and do not say so


NAMED = {
    "femnist": Named(
        (("tff", "femnist/fed_emnist_train.h5"), ("leaf", "femnist")),
        "LEAF's folders train/ and test/ of json files (or fed_emnist_train.h5 and fed_emnist_test.h5 of TensorFlow "
        "Federated) into {root}/femnist",
        classes={"leaf": 62},
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


@dataclass(frozen=True)
class Files:
    """The files of the set that is called `name`: their form, absolute paths, and sorted options.

    `known` is the key in `NAMED` of a set with a name of its own.
    """

    name: str = field(compare=False)
    form: str
    paths: tuple[Path, ...]
    options: tuple[tuple[str, str], ...] = ()
    known: str = ""

    def __post_init__(self) -> None:
        form, keys = FORMS[self.form], [key for key, _ in self.options]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise DataError(f"data: {self.name!r}: {', '.join(twice)} is given twice")
        if unknown := sorted(set(keys) - set(form.options)):
            raise DataError(
                f"data: {self.name!r}: unknown option {', '.join(unknown)}; {self.form} knows "
                f"{', '.join(form.options) or 'none'}"
            )
        if len(set(self.paths)) < len(self.paths):
            raise DataError(f"data: {self.name!r} names a file twice; what is tested on must not be trained on")
        if len(self.paths) > form.most_paths:
            raise DataError(
                f"data: {self.name!r}: {self.form} takes {form.most_paths} path(s), found {len(self.paths)}; a path "
                "must hold no comma"
            )

    def npz(self) -> Path:
        """Where the decoded set is or will be kept."""
        if self.known and not self.options:
            return data_root() / f"{self.known}.npz"
        states = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in self._files()]
        digest = hashlib.sha256(repr((_VERSION, self.form, states, self.options)).encode()).hexdigest()[:16]
        return data_root() / DECODED / f"{self.form}-{self.known or self.paths[0].stem}-{digest}.npz"

    def decoded(self) -> Path:
        """Path of the decoded set, decoded on first use; DataError if files are missing or unfit."""
        target = self.npz()
        if target.exists():
            return target
        modes = [file.stat().st_mode for file in self._files()]
        console().print(f"{self.name}: decoding, once, into {target}", markup=False, soft_wrap=True)
        return kept(target, self._read, reduce(and_, modes, READABLE) | OWN)  # for those who may read the files

    def _files(self) -> list[Path]:
        """Files and folders whose change means that the set changed; DataError where one is missing."""
        found: list[Path] = getattr(self._module, f"{self.form}_files")(self.paths)
        return found

    def _read(self, scratch: Path) -> Arrays:
        """The set, checked; large arrays may lie in the empty folder `scratch`."""
        arrays: Arrays = getattr(self._module, f"read_{self.form}")(self.paths, dict(self.options), scratch)
        if self.known and (classes := NAMED[self.known].classes.get(self.form)):
            arrays = {**arrays, "num_classes": np.array(classes)}
        numbers = np.issubdtype(arrays["y_train"].dtype, np.floating)  # which a task of another kind may ask for
        as_data_set(arrays, self.name, targets="values" if numbers else "classes")
        self.tell(arrays)
        return arrays

    def tell(self, arrays: Arrays) -> None:
        """Warn, in a line each, of how columns of a table were read or why they were left out."""
        for note in arrays.get("notes", ()):
            logger.warning("data: %s: %s", self.name, note)

    @property
    def _module(self) -> ModuleType:
        return import_module(f"dqnfed_flwr.data.{FORMS[self.form].module}")


def files_of_known(name: str, known: str, options: tuple[tuple[str, str], ...]) -> Files:
    """Those of the first candidate that lie there; any where the decoded set is kept already, or DataError."""
    root, named = data_root(), NAMED[known]
    for form, place in named.candidates:
        if (root / place).exists():
            return Files(name, form, (root / place,), options, known)
    form, place = named.candidates[0]
    files = Files(name, form, (root / place,), options, known)
    if not options and files.npz().exists():
        return files
    raise DataError(
        f"data: {known} is not in {root}: put {named.put.format(root=root)}; or set DQNFED_DATA to a folder that has "
        f"them; or name the files, data={form}:PATH"
    )
