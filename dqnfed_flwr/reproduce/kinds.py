"""Kinds of values that a manifest has: seeds, grids, columns, published figures, names of folders, lines of text."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field

from dqnfed_flwr.config import Scalar, Settings
from dqnfed_flwr.reproduce.measures import MEASURES

T = TypeVar("T")


def _no_twice(values: list[T]) -> list[T]:
    if twice := [value for place, value in enumerate(values) if value in values[:place]]:
        raise ValueError(f"found {twice[0]!r} twice")
    return values


def _measure(name: str) -> str:
    if name not in MEASURES:
        raise ValueError(f"found {name!r}; allowed: {', '.join(MEASURES)}")
    return name


def _setting(key: str) -> str:
    if key not in Settings().flat():
        raise ValueError(f"found {key!r}, which is no setting; dqnfed settings lists all")
    return key


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def _not_empty(text: str) -> str:
    if not text:
        raise ValueError("found nothing; say it in a line of text")
    return text


Name = Annotated[str, AfterValidator(_in_one_line)]
"""Text for a cell of a table; line breaks in it become spaces."""
Line = Annotated[Name, AfterValidator(_not_empty)]
"""Text for a heading or an item of a list, likewise, and never empty."""
Seeds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1), AfterValidator(_no_twice)]
Columns = Annotated[list[Annotated[str, AfterValidator(_measure)]], Field(min_length=1)]
Figures = dict[Annotated[str, AfterValidator(_measure)], float]
Values = Annotated[list[Scalar], Field(min_length=1), AfterValidator(_no_twice)]
Axes = dict[Annotated[str, AfterValidator(_setting)], Values]
Folder = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
