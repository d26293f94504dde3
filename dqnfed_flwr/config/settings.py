"""Settings of a run: one set of keys for YAML files, `[tool.flwr.app.config]` and `--run-config`.

Keys are kebab-case; groups are nested mappings or dotted keys (`local: {epochs: 2}` equals `local.epochs: 2`).
`Settings.from_mapping` reads both, and turns every fault into a `ConfigError` that names the key, what was found and
what is allowed. The keys are those of `schema.run` and, a group each, those that the files of the methods declare.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from pydantic import Field, ValidationError, create_model, field_validator, model_validator
from pydantic.fields import FieldInfo

from dqnfed_flwr.config.combinations import faults
from dqnfed_flwr.config.methods import METHODS, profile_of
from dqnfed_flwr.config.plan import check_stages, resolve
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.schema.group import Group, Scalar, Setting, kebab, known_of
from dqnfed_flwr.schema.groups import StepSettings
from dqnfed_flwr.schema.run import AUTO, RunSettings
from dqnfed_flwr.schema.suggestions import did_you_mean, keys_like
from dqnfed_flwr.steps import RULES

GROUP_OF_METHOD = {profile.key: name for name, profile in METHODS.items() if profile.settings}
"""The method that declares a group of settings, by the group's key."""
if taken := [key for key in GROUP_OF_METHOD if key.replace("-", "_") in RunSettings.model_fields]:
    raise TypeError(f"methods declare the groups {taken}, which every run has; give `group` another name")

if TYPE_CHECKING:
    _AllGroups = RunSettings
else:
    _of_rules = [rule.settings for rule in RULES.values() if rule.settings]
    _Step = create_model("_Step", __base__=(StepSettings, *reversed(_of_rules)), __module__=__name__)
    _AllGroups = create_model(
        "_AllGroups",
        __base__=RunSettings,
        step_rule=(Literal[AUTO, *RULES], RunSettings.model_fields["step_rule"]),
        step=(_Step, Field(default_factory=_Step)),
        **{
            profile.key.replace("-", "_"): (profile.settings, Field(default_factory=profile.settings))
            for profile in METHODS.values()
            if profile.settings
        },
    )


class Settings(_AllGroups):
    """All settings of one run.

    Raises
    ------
    ConfigError
        From `from_mapping`, for an unknown key, a wrong type, a value out of range or an impossible combination.
    """

    @field_validator("method")
    @classmethod
    def _check_method(cls, method: str) -> str:
        try:
            profile_of(method)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return method

    @model_validator(mode="after")
    def _check_combinations(self) -> Settings:
        try:
            check_stages(self)
            plan = resolve(self)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        for fault in faults(plan):
            raise ValueError(fault)
        return self

    @property
    def title(self) -> str:
        """The method's name in tables, with the form it runs in where it has several."""
        return resolve(self).title

    @classmethod
    def from_record(cls, flat: Mapping[str, Any]) -> Settings:
        """The settings that a run wrote down, by dotted keys, which are all there.

        Raises
        ------
        ConfigError
            As `from_mapping`, and naming the first key that is missing.
        """
        if missing := sorted(KNOWN.keys() - flat.keys()):
            raise ConfigError(f"{missing[0]}: not among the settings; a run writes down all of them")
        return cls.from_mapping(flat)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Settings:
        """Check nested or dotted keys, as read from YAML, TOML or a Flower run config; absent keys take their default.

        Raises
        ------
        ConfigError
            Naming each faulty key, what was found and what is allowed.
        """
        try:
            return cls.model_validate(nest(mapping))
        except ValidationError as error:
            raise ConfigError("\n".join(_explain(item) for item in error.errors())) from None

    @classmethod
    def unchecked(cls, flat: Mapping[str, Any]) -> Settings:
        """Settings by dotted keys that need not go together, to ask what a row would read that is checked later.

        Unknown keys are left out.

        Raises
        ------
        ConfigError
            If a value of a group is out of its own limits.
        """
        nested = nest(flat)
        values: dict[str, Any] = {}
        for name, field in cls.model_fields.items():
            given, group = nested.get(kebab(name)), field.annotation
            if isinstance(group, type) and issubclass(group, Group):
                known = {kebab(inner) for inner in group.model_fields}
                try:
                    values[name] = group.model_validate({key: v for key, v in (given or {}).items() if key in known})
                except ValidationError as error:
                    raise ConfigError("\n".join(_explain(item) for item in error.errors())) from None
            elif given is not None:
                values[name] = given
        return cast("Settings", cls.model_construct(**values))

    def flat(self) -> dict[str, Scalar]:
        """The settings as dotted kebab-case keys and scalars, as a Flower run config holds them."""
        return flatten(self.model_dump(by_alias=True))


def _fields() -> Iterator[tuple[str, FieldInfo]]:
    """Every key with its field."""
    for name, entry in Settings.model_fields.items():
        group = entry.annotation
        if isinstance(group, type) and issubclass(group, Group):
            yield from ((f"{kebab(name)}.{kebab(inner)}", field) for inner, field in group.model_fields.items())
        else:
            yield kebab(name), entry


KNOWN: Mapping[str, Setting] = {key: known_of(field) for key, field in _fields()}
"""What is known of every key."""


def describe() -> list[tuple[str, Scalar, str]]:
    """Every key with its default and meaning, for `--help` and the documents."""
    return [(key, field.default, _meaning(field.description, field.annotation)) for key, field in _fields()]


def toml_defaults(table: str = "tool.flwr.app.config") -> str:
    """Every key with its default, as TOML: what Flower needs of an app's `pyproject.toml`."""
    lines, last = [f"[{table}]"], ""
    for key, default, _ in describe():
        group, _, name = key.rpartition(".")
        if group != last:
            lines += ["", f"[{table}.{group}]"]
            last = group
        lines.append(f"{name} = {json.dumps(default)}")
    return "\n".join(lines) + "\n"


def without_effect(settings: Settings, keys: Iterable[str]) -> list[str]:
    """Those of the dotted `keys` that change nothing in a run with `settings`, in their order."""
    plan = resolve(settings)
    methods = {part.method.name for part in plan.parts}

    def has_none(key: str) -> bool:
        method = GROUP_OF_METHOD.get(key.partition(".")[0]) if "." in key else None
        return (method is not None and method not in methods) or (key in KNOWN and not KNOWN[key].read(plan))

    return [key for key in keys if has_none(key)]


def _meaning(description: str | None, annotation: object) -> str:
    choices = get_args(annotation)
    return f"{description} ({' | '.join(map(str, choices))})" if choices else str(description)


def _explain(item: Any) -> str:
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        inner = flatten({key: item["input"]}) if isinstance(item["input"], Mapping) else {}
        return "\n".join(map(unknown_key, inner or [key]))
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "value_error":
        joint = "." if key in GROUP_OF_METHOD else ": "
        return f"{key}{joint}{message}" if key else message
    return f"{key}: {message}, found {item['input']!r}"


def unknown_key(key: str) -> str:
    """What is said of a key that is none."""
    if near := keys_like(key, list(KNOWN)):
        return f"{key}: unknown key; {did_you_mean(near)} `dqnfed settings --all` lists all"
    group = key.rpartition(".")[0]
    if known := sorted(name.rpartition(".")[2] for name in KNOWN if group and name.startswith(f"{group}.")):
        return f"{key}: unknown key; allowed in {group}: {', '.join(known)}"
    return f"{key}: unknown key; `dqnfed settings --all` lists all"


def nest(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted keys into nested mappings.

    Raises
    ------
    ConfigError
        If a key is given twice, under both forms, with different values.
    """
    nested: dict[str, Any] = {}
    for key, value in mapping.items():
        group = nested
        *parents, last = str(key).split(".")
        for parent in parents:
            group = group.setdefault(parent, {})
            if not isinstance(group, dict):
                raise ConfigError(f"{key}: {parent!r} is set both as a value and as a group")
        _put(group, last, nest(value) if isinstance(value, Mapping) else value, str(key))
    return nested


def _put(group: dict[str, Any], name: str, value: Any, key: str) -> None:
    if name not in group:
        group[name] = value
        return
    known = group[name]
    if isinstance(known, dict) and isinstance(value, dict):
        for inner, item in value.items():
            _put(known, inner, item, f"{key}.{inner}")
    elif known != value:
        raise ConfigError(f"{key}: found both {known!r} and {value!r}; give it once")


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Inverse of `nest`: nested mappings to dotted keys."""
    flat: dict[str, Scalar] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
