"""Import torchvision's data sets, also where its compiled operators do not fit the torch beside it.

A torchvision wheel built for CUDA next to a CPU-only torch cannot load its operator library; its import then stops at
the operators that it registers fake kernels for, and cannot be repeated in the process. Their schemas, declared before
that first import, are enough for data sets. Where the library loads, nothing is declared.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dqnfed_flwr.errors import DataError

if TYPE_CHECKING:
    from types import ModuleType

    import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[torch.library.Library] = []  # a schema lives as long as the object that declared it


def torchvision_datasets() -> ModuleType:
    """Import `torchvision.datasets`.

    Raises
    ------
    DataError
        If torchvision is not installed.
    """
    if "torchvision" not in sys.modules:
        spec = find_spec("torchvision")
        if spec is None or spec.origin is None:
            raise DataError(
                "data: this set comes through torchvision, which is not installed; install torchvision, or name an "
                ".npz file"
            )
        if not _operators_load(Path(spec.origin).parent):
            _declare_operators()
    return import_module("torchvision.datasets")


def _operators_load(package: Path) -> bool:
    import torch

    libraries = [path for path in package.glob("_C*") if path.suffix in {".so", ".pyd", ".dylib"}]
    try:
        for path in libraries:
            torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    except OSError:
        return False
    return bool(libraries)


def _declare_operators() -> None:
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema in _SCHEMAS:
        library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)
