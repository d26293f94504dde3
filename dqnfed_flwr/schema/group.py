"""What a setting is: a field of a group, with all that is known of it in one place.

A group is a frozen pydantic model. `setting` makes its fields: default, meaning and limits, and a `Setting` that says
what the key is about, whether it changes figures, whether a resumed run may change it, who reads it, whether it is a
path, and whether it is for every day or for experts. Everything that depends on the nature of a key asks its `Setting`;
no other list of keys is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

Scalar = str | int | float | bool
About = Literal["data", "model", "machine", "experiment", "method", "training", "protocol", "output"]
Changes = Literal["experiment", "details", "nothing"]
Level = Literal["everyday", "expert"]
Reads = Callable[[Any], bool]
"""Whether a run of this plan (`schema.plan.RunPlan`) reads a key."""


def always(run: Any) -> bool:
    """Read in every run."""
    return True


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of a key beyond its default, meaning and limits.

    Attributes
    ----------
    about : About
        What it belongs to. Rows of a comparison share what is about the `data` and the `experiment`; a model that is
        trained on one client before round 1 takes what is about `data`, `model` and `machine`.
    changes : Changes
        What another value changes: the `experiment`; `details` of its figures, such as the last bits or in which
        rounds they are taken; or `nothing` in them.
    on_resume : bool
        Whether a resumed run may set it anew.
    read : Reads
        Whether a run reads it; a key that a method declares is read by that method alone, too.
    path : bool
        Whether it names a file or folder.
    size : Literal["", "size", "size or all"]
        Whether a smaller value makes a smaller experiment, and whether 0 stands for all.
    instead : str
        What decides it in a comparison, for a key that neither file nor `--set` decides there.
    level : Level
        Whether people set it `everyday`, or an `expert` now and then; the latter are left out of short lists.
    """

    about: About
    changes: Changes = "experiment"
    on_resume: bool = False
    read: Reads = always
    path: bool = False
    size: Literal["", "size", "size or all"] = ""
    instead: str = ""
    level: Level = "everyday"

    @property
    def shared(self) -> bool:
        """Whether rows of a comparison can have no value of their own."""
        return self.about in ("data", "experiment") or bool(self.instead)


def setting(
    default: Any,
    description: str,
    *,
    about: About,
    changes: Changes = "experiment",
    on_resume: bool = False,
    read: Reads = always,
    path: bool = False,
    size: Literal["", "size", "size or all"] = "",
    instead: str = "",
    level: Level = "everyday",
    **limits: Any,
) -> Any:
    """A field of a group: default, meaning, pydantic's limits (`ge`, `gt`, `le`, `lt`), and its `Setting`."""
    known: Any = Setting(about, changes, on_resume, read, path, size, instead, level)
    return Field(default, description=description, json_schema_extra={_KEY: known}, **limits)


def own(default: Any, description: str, *, read: Reads = always, level: Level = "everyday", **limits: Any) -> Any:
    """A setting of one method, in the group that its file declares."""
    return setting(default, description, about="method", read=read, level=level, **limits)


expert = partial(own, level="expert")
"""A setting of one method that few people change."""
_KEY = "setting"
"""Where a field keeps its `Setting`."""


def known_of(field: FieldInfo) -> Setting:
    """The `Setting` of a field that `setting` made."""
    extra = field.json_schema_extra
    if not isinstance(extra, dict) or not isinstance(extra.get(_KEY), Setting):
        raise TypeError(f"{field.description}: a field of a group is made by `setting` or `own`")
    return extra[_KEY]  # type: ignore[return-value]


def _joined(value: Any) -> Any:
    items = value if isinstance(value, list | tuple) else [value]
    whole = items and all(isinstance(item, int) and not isinstance(item, bool) for item in items)
    return ",".join(map(str, items)) if whole else value


Numbers = Annotated[str, BeforeValidator(_joined)]
"""Whole numbers between commas; a single one may come as a number, several as a list of YAML."""


def kebab(name: str) -> str:
    """The name of a key outside Python."""
    return name.rstrip("_").replace("_", "-")


class Group(BaseModel):
    """Base of all groups: frozen, unknown keys refused, types not coerced, numbers finite, kebab-case names outside."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        alias_generator=kebab,
        validate_by_name=True,
        validate_by_alias=True,
    )
