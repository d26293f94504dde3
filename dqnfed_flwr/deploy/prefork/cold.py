"""Flower's `flwr-clientapp` with the look at apps before it: `python cold.py flwr-clientapp OPTIONS`."""

from __future__ import annotations

import importlib.util
import sys
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType


def beside(name: str) -> ModuleType:
    """A script of this folder as a module, loaded by its path."""
    spec = importlib.util.spec_from_file_location(f"_dqnfed_{name}", Path(__file__).with_name(f"{name}.py"))
    if spec is None or spec.loader is None:
        sys.exit(f"dqnfed: {name}.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Be the program that the first argument names."""
    del sys.argv[0]
    beside("allowed").guard_this_process()
    (found,) = distribution("flwr").entry_points.select(group="console_scripts", name=sys.argv[0])
    sys.exit(found.load()())


if __name__ == "__main__":
    main()
