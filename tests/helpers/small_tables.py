"""Small tables in CSV files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dqnfed_flwr.data.tables import read_csv

FLOWERS = """\
size, colour ,fresh,kind,bed
1.5,red,true,tulip,north
2, blue,false,rose,south
-3e-1,red,True,tulip,north
4,"green",false,aster,south
"""


class Tables:
    """Tables in a folder, with decoded sets beside them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        monkeypatch.setenv("DQNFED_DATA", str(folder / "root"))

    def __call__(self, content: str | bytes, name: str = "t.csv") -> Path:
        """Write a file."""
        path = self._folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path


def labelled(path: Path, options: str = "label=y") -> Any:
    """Arrays of a CSV file."""
    return read_csv([path], dict(pair.split("=", 1) for pair in options.split(",")), path)
