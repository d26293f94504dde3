"""What a manifest may hold. Keys are kebab-case; an unknown one is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from dqnfed_flwr.config import KNOWN, PRESETS, Settings, preset_of
from dqnfed_flwr.config.methods import profile_of
from dqnfed_flwr.config.settings import flatten, nest
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.reproduce.measures import MEASURES, Place, printed_figures
from dqnfed_flwr.schema.group import Group, Scalar, kebab

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
        raise ValueError(f"found {key!r}, which is no setting; dqnfed settings --all lists all")
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
"""The same for a heading or an item of a list, never empty."""
Seeds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1), AfterValidator(_no_twice)]
Columns = Annotated[list[Annotated[str, AfterValidator(_measure)]], Field(min_length=1)]
Figures = dict[Annotated[str, AfterValidator(_measure)], float]
Values = Annotated[list[Scalar], Field(min_length=1), AfterValidator(_no_twice)]
Axes = dict[Annotated[str, AfterValidator(_setting)], Values]
Folder = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Nested = dict[str, Any]


class PublishedFigures(Group):
    """Where the published figures of a part stand in `published.csv`."""

    paper: str
    table: str
    experiment: str

    @property
    def place(self) -> Place:
        """As `printed_figures` has it."""
        return self.paper, self.table, self.experiment

    @model_validator(mode="after")
    def _check(self) -> PublishedFigures:
        if self.place not in printed_figures():
            allowed = [place for place in printed_figures() if place[0] == self.paper] or [*printed_figures()]
            places = "; ".join(", ".join(place) for place in allowed)
            raise ValueError(f"found {', '.join(self.place)}; allowed are paper, table and experiment of {places}")
        return self


class ManifestRow(Group):
    """A method of a table."""

    method: str = Field(description="its name here")
    paper: Name = Field("", description="its name in the paper; empty for a row that the paper has not")
    title: Name = Field("", description="its name in our tables; empty for the usual one")
    preset: str = Field("", description="settings by name, before `settings`: paper, paper-safeguarded")
    settings: Nested = Field(default_factory=dict, description="settings of this row alone")
    grid: Axes = Field(default_factory=dict, description="keys to search over, with their values")
    figures: Figures = Field(default_factory=dict, description="published figures that are in no file")

    @property
    def own(self) -> dict[str, Scalar]:
        """The preset's settings with `settings` over them, as dotted keys."""
        return {**(preset_of(self.preset).own if self.preset else {}), **flatten(nest(self.settings))}

    @property
    def shown(self) -> str:
        """`title`, or that of the preset."""
        return self.title or (preset_of(self.preset).title if self.preset else "")

    @model_validator(mode="after")
    def _check(self) -> ManifestRow:
        if self.preset and self.preset not in PRESETS:
            raise ValueError(f"preset: found {self.preset!r}; allowed: {', '.join(PRESETS)}")
        if taken := [key for key in (*self.own, *self.grid) if key in KNOWN and KNOWN[key].shared]:
            raise ValueError(f"{', '.join(taken)} must be the same for all rows; it stands in the part's settings")
        return self


class GridSearch(Group):
    """How grids are searched."""

    rounds: int | None = Field(None, ge=1)
    seed: int = Field(100, ge=0, description="apart from those of the final runs")
    select: Literal["mean", "worst10"] = "mean"


class Reduced(Group):
    """What is left of a part on two cores."""

    settings: Nested = Field(default_factory=dict)
    seeds: Seeds = Field(default_factory=lambda: [0, 1, 2])
    grids: bool = Field(
        False, description="whether all grids are searched; else those of free step lengths (step.lr, step.decay) alone"
    )

    @property
    def own(self) -> dict[str, Scalar]:
        """`settings` as dotted keys."""
        return flatten(nest(self.settings))


class Part(Group):
    """A setup: one comparison."""

    title: Line
    like: str = Field("", description="MANIFEST.PART whose keys are taken where they are not given here")
    settings: Nested
    rows: list[ManifestRow] = Field(min_length=1)
    columns: Columns = Field(default_factory=lambda: ["mean", "std", "worst10", "best10"])
    published: PublishedFigures | None = None
    scale: Literal[1, 100] = Field(1, description="100 where the paper has shares and we have per cent")
    last: int = Field(1, ge=1, description="evaluations whose figures are averaged")
    search: GridSearch = Field(default_factory=GridSearch)
    reduced: Reduced
    needs: list[Line] = Field(default_factory=list, description="what must be there that the package does not bring")
    runs: bool = Field(True, description="false where the package cannot carry it out at all")
    remarks: list[Line] = Field(default_factory=list)

    @property
    def own(self) -> dict[str, Scalar]:
        """`settings` as dotted keys."""
        return flatten(nest(self.settings))

    @model_validator(mode="after")
    def _check(self) -> Part:
        taken = [key for key in (*self.own, *self.reduced.own) if key in KNOWN and KNOWN[key].instead]
        if taken:
            raise ValueError(f"settings: {', '.join(taken)} cannot stand here; rows name methods, seeds stand apart")
        alike = [(row.method, row.own) for row in self.rows]
        if twice := [row.method for place, row in enumerate(self.rows) if alike[place] in alike[:place]]:
            raise ValueError(f"rows: {twice[0]} stands twice with the same settings")
        if not self.runs and not self.needs:
            raise ValueError("runs: false needs a reason; say under needs what is missing")
        return self


class Manifest(Group):
    """A table or a figure."""

    title: Line
    source: Line
    reference: str = Field("dqn-fed", description="the method whose claims are looked at")
    seeds: Seeds = Field(default_factory=lambda: [0, 1, 2, 3, 4])
    open: list[Line] = Field(default_factory=list, description="what the paper leaves open")
    chosen: list[Line] = Field(default_factory=list, description="what was chosen, and why")
    parts: dict[Folder, Part] = Field(min_length=1)

    @field_validator("reference")
    @classmethod
    def _known(cls, method: str) -> str:
        try:
            profile_of(method)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return method

    def part(self, name: str) -> Part:
        """A part by its name.

        Raises
        ------
        ConfigError
            If there is none.
        """
        if name not in self.parts:
            raise ConfigError(f"--part: found {name!r}; allowed: {', '.join(self.parts)}")
        return self.parts[name]


def check_manifest(mapping: Mapping[str, Any], name: str) -> Manifest:
    """A manifest from what its file holds.

    Raises
    ------
    ConfigError
        Naming the file, each faulty key, what was found and what is allowed.
    """
    try:
        return Manifest.model_validate(dict(mapping))
    except ValidationError as error:
        raise ConfigError("\n".join(f"{name}: {_explain(item)}" for item in error.errors())) from None


def _explain(item: ErrorDetails) -> str:
    key = ".".join(str(part) for part in item["loc"] if part != "[key]")
    if item["type"] == "extra_forbidden":
        known = _allowed(item["loc"][:-1])
        near = get_close_matches(str(item["loc"][-1]), known, n=1)
        return f"{key}: unknown key{f'; did you mean {near[0]}?' if near else ''}; allowed: {', '.join(known)}"
    if item["type"] == "missing":
        return f"{key}: is missing; allowed beside it: {', '.join(_allowed(item['loc'][:-1]))}"
    message = item["msg"].removeprefix("Value error, ")
    return f"{key}: {message}" if item["type"] == "value_error" else f"{key}: {message}, found {item['input']!r}"


def _allowed(place: tuple[int | str, ...]) -> list[str]:
    """Keys of the group at a place."""
    groups: dict[str, type[Group]] = {
        "rows": ManifestRow,
        "published": PublishedFigures,
        "search": GridSearch,
        "reduced": Reduced,
        "parts": Part,
    }
    inner = [groups[part] for part in place if isinstance(part, str) and part in groups]
    named = inner[-1] if inner else Manifest
    return [kebab(field) for field in named.model_fields]
