"""Settings by name: the YAML files of shipped experiments and of a user, and presets.

Presets are the algorithm as the paper prints it, and the same with our safeguard around it.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.schema.group import Scalar
from dqnfed_flwr.yaml_nodes import BoundedLoader

SHIPPED = "dqnfed_flwr.experiments"
"""The package that holds the files of the shipped experiments."""


def shipped() -> list[str]:
    """Names of the experiments that come with the package, in alphabetical order."""
    files = resources.files(SHIPPED).iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def load_config(name_or_path: str | Path) -> dict[str, Any]:
    """Read the settings of an experiment, a shipped name or a YAML file, unchecked: for `Settings.from_mapping`.

    A name without suffix or folder is always a shipped one.

    Raises
    ------
    ConfigError
        If there is no such experiment or file, or it is no YAML mapping, or a key stands twice in it.
    """
    name = str(name_or_path)
    if name in shipped():
        return read_yaml(resources.files(SHIPPED).joinpath(f"{name}.yaml").read_text("utf-8"), name)
    path = Path(name_or_path).expanduser()
    if path.suffix not in (".yaml", ".yml") and path.name == name:
        raise ConfigError(
            f"{name!r} is no shipped experiment ({', '.join(shipped())}); a file of your own ends in .yaml"
        )
    return read_own(path, name, f"shipped experiments: {', '.join(shipped())}")


def read_own(path: Path, name: str, instead: str) -> dict[str, Any]:
    """Read a YAML file of the user's, which he called `name`; `ConfigError` says what there is `instead`."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{name}: cannot be read ({reason}); {instead}") from None
    return read_yaml(text, name)


def parse_scalar(text: str) -> str | int | float | bool:
    """Read one value as YAML does in an experiment's file.

    Raises
    ------
    ConfigError
        If `text` is a list, a mapping, or nothing.
    """
    try:
        value = yaml.load(text, _SettingsLoader)
    except yaml.YAMLError:
        return text
    if isinstance(value, str | int | float | bool):
        return value
    raise ConfigError(f"found {text!r}; give one number, word, true or false")


_BOOL = "tag:yaml.org,2002:bool"


class _SettingsLoader(BoundedLoader):
    """YAML without three surprises of PyYAML: 1e-4 is a number, off is a word, a key that stands twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build a mapping whose keys differ."""
        keys = [key.value for key, _ in node.value]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise yaml.constructor.ConstructorError(problem=f"{', '.join(twice)}: set twice")
        return super().construct_mapping(node, deep=deep)


_SettingsLoader.yaml_implicit_resolvers = {
    first: [found for found in resolvers if found[0] != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_SettingsLoader.add_implicit_resolver(_BOOL, re.compile(r"(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_SettingsLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_yaml(text: str, name: str) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises
    ------
    ConfigError
        Naming the file, if the text is none, a key stands twice in it, or it is too large (`yaml_nodes`).
    """
    try:
        value = yaml.load(text, _SettingsLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: {' '.join(str(error).split())}") from None
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{name}: found {type(value).__name__}; a configuration is a mapping of keys to values")
    return value


@dataclass(frozen=True, slots=True)
class Preset:
    """A set of settings with its name in tables; it goes before a file, and `--set` goes before it."""

    title: str
    settings: Mapping[str, Scalar]

    @property
    def own(self) -> dict[str, Scalar]:
        """The settings but for the method, which a row of a comparison has by itself."""
        return {key: value for key, value in self.settings.items() if key != "method"}


_AS_PRINTED: Mapping[str, Scalar] = {
    "method": "dqn-fed",
    "dqn-fed.form": "two-sided",
    "dqn-fed.rate-spread": 0.0,
    "curvature.kind": "secant",
    "curvature.previous": "recomputed",
}
PRESETS: Mapping[str, Preset] = {
    "paper": Preset(
        "DQN-Fed, Algorithm 1",
        {**_AS_PRINTED, "local.work": "lbfgs", "step-rule": "fixed", "step.lr": 0.1},
    ),
    "paper-safeguarded": Preset(
        "DQN-Fed, Algorithm 1, safeguarded",
        {**_AS_PRINTED, "local.work": "gradient", "step-rule": "probed", "guarantee.entitlement": "0"},
    ),
}
"""`paper` is Algorithm 1 of Hamidi and Ye (TMLR 2025): the two-sided step (7), (8), (12), with rates (18) from secant
pairs, the first of them theta^t - theta^{t-1}; `local.epochs` passes; and a fixed length eta, 0.1 as in its tables.
`paper-safeguarded` has the same direction from one gradient, with a length that every client accepts."""


def preset_of(name: str) -> Preset:
    """The preset of a name.

    Raises
    ------
    ConfigError
        If there is none.
    """
    if name not in PRESETS:
        raise ConfigError(f"preset: found {name!r}; allowed: {', '.join(PRESETS)}")
    return PRESETS[name]
