"""All methods by name, as their files declare them: modules of the package `methods` with `METHODS` or `FAMILIES`.

They are found by name, for a method's file may import whatever stands above it in the package, settings among it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.schema.plan import Profile
from dqnfed_flwr.schema.suggestions import did_you_mean, method_like


def _modules() -> list[object]:
    package = import_module("dqnfed_flwr.methods")
    return [import_module(f"{package.__name__}.{found.name}") for found in iter_modules(package.__path__)]


def _declared() -> dict[str, Profile]:
    """The declarations by name, in alphabetical order."""
    found: dict[str, Profile] = {}
    for profile in (profile for module in _modules() for profile in getattr(module, "METHODS", ())):
        if profile.name in found:
            raise TypeError(f"two files declare the method {profile.name!r}; give each a name of its own")
        found[profile.name] = profile
    return dict(sorted(found.items()))


METHODS = _declared()
FAMILIES: dict[str, Callable[[str], Profile]] = {
    prefix: declare for module in _modules() for prefix, declare in getattr(module, "FAMILIES", {}).items()
}
"""How a method is declared whose name begins so."""


def profile_of(name: str) -> Profile:
    """The declaration of a method.

    Raises
    ------
    ConfigError
        If there is no such method.
    """
    for prefix, declare in FAMILIES.items():
        if name.startswith(prefix) and len(name) > len(prefix):
            return declare(name)
    if name not in METHODS:
        question = did_you_mean(method_like(name, ((own, each.title) for own, each in METHODS.items())))
        allowed = f"allowed: {', '.join(METHODS)}, {', '.join(f'{prefix}<aggregator>' for prefix in FAMILIES)}"
        raise ConfigError(f"found {name!r}; {f'{question} ' if question else ''}{allowed}")
    return METHODS[name]
