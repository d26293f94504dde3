"""All methods by name, as their files declare them: every module of this package with `METHODS` is looked at."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from dqnfed_flwr import methods
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.methods.torchjd import TORCHJD, torchjd_profile
from dqnfed_flwr.schema.run import Profile, RunSettings
from dqnfed_flwr.schema.suggestions import did_you_mean, method_like


def _declared() -> dict[str, Profile]:
    """The declarations by name, in alphabetical order."""
    modules = (
        import_module(f"{methods.__name__}.{found.name}")
        for found in iter_modules(methods.__path__)
        if found.name != "table"
    )
    found: dict[str, Profile] = {}
    for profile in (profile for module in modules for profile in getattr(module, "METHODS", ())):
        if profile.name in found:
            raise TypeError(f"two files declare the method {profile.name!r}; give each a name of its own")
        found[profile.name] = profile
    return dict(sorted(found.items()))


METHODS = _declared()


def profile_of(name: str) -> Profile:
    """The declaration of a method.

    Raises
    ------
    ConfigError
        If there is no such method.
    """
    if name.startswith(TORCHJD) and len(name) > len(TORCHJD):
        return torchjd_profile(name)
    if name not in METHODS:
        question = did_you_mean(method_like(name, ((own, each.title) for own, each in METHODS.items())))
        allowed = f"allowed: {', '.join(METHODS)}, {TORCHJD}<aggregator>"
        raise ConfigError(f"found {name!r}; {f'{question} ' if question else ''}{allowed}")
    return METHODS[name]


def make_method(run: RunSettings) -> Method:
    """A fresh method as `run.method` names it."""
    method: Method = profile_of(run.method).build(run)
    return method
