"""Named sets of settings: the algorithm as the paper prints it, and the same with our safeguard around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.schema.group import Scalar


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
