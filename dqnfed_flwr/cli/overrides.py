"""Settings of a command: a configuration with `--set` laid over it, and a word about keys that change nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import typer

from dqnfed_flwr.compare.plan import Job
from dqnfed_flwr.config import Scalar, Settings, flatten, nest, preset_of, without_effect
from dqnfed_flwr.config.loading import load_config, parse_scalar, shipped
from dqnfed_flwr.data.own_folder import absolute, load_own
from dqnfed_flwr.errors import ConfigError


def read_settings(
    config: str, overrides: Sequence[str], output: Path | None, *, preset: str = "", resume: bool = False
) -> Settings:
    """Settings of a configuration, with `--preset`, `--set`, `--output` and `--resume` laid over it."""
    flat = flat_config(config, overrides, preset)
    if output is not None:
        flat["output"] = str(output)
    if resume:
        flat["resume"] = True
    if flat.get("output"):
        flat["output"] = str(Path(str(flat["output"])).expanduser().resolve())
    return Settings.from_mapping(flat)


def flat_config(config: str, overrides: Sequence[str], preset: str = "") -> dict[str, Scalar]:
    """Dotted keys of a configuration, unchecked, with those of a preset and then `--set` laid over it.

    Paths become absolute: those of a file begin in its folder, those of `--set` in the working directory.
    """
    named = preset_of(preset).settings if preset else {}
    return {**load_own(config), **named, **absolute(overridden({}, overrides), [Path.cwd()])}


def flat_config_elsewhere(config: str, overrides: Sequence[str]) -> dict[str, Scalar]:
    """The same for a run on other machines, whose paths are theirs and stay as they are."""
    return overridden(flatten(nest(load_config(config))), overrides)


def overridden(flat: Mapping[str, Scalar], overrides: Sequence[str]) -> dict[str, Scalar]:
    """Dotted keys with `--set` laid over them; `ConfigError` if an override is no KEY=VALUE."""
    found = dict(flat)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set: found {override!r}; give KEY=VALUE, such as --set rounds=50")
        try:
            found[key.strip()] = parse_scalar(value)
        except ConfigError as error:
            raise ConfigError(f"--set {key.strip()}: {error}") from None
    return found


def given_keys(config: str, overrides: Sequence[str]) -> list[str]:
    """Dotted keys of the user's own: those of `--set`, and of the file where it is no shipped experiment."""
    own = [] if config in shipped() else flatten(nest(load_config(config)))
    return list(dict.fromkeys([*own, *set_keys(overrides)]))


def set_keys(overrides: Sequence[str]) -> list[str]:
    """The keys of `--set KEY=VALUE`."""
    return [override.partition("=")[0].strip() for override in overrides]


def tell_unread(keys: Sequence[str], jobs: Iterable[Job]) -> None:
    """Name on stderr the keys that reach no run of a comparison: rows or grids replace them, or no run reads them."""
    runs = list(jobs)
    reached = {key: [job.settings for job in runs if key not in {**job.spec.own, **job.point}] for key in keys}
    replaced = [key for key in keys if len(reached[key]) < len(runs)]
    tell_without_effect([key for key in keys if key not in replaced], [job.settings for job in runs])
    if unread := [key for key in replaced if _is_unread(key, reached[key])]:
        typer.echo(f"dqnfed: no effect, for rows or grids have their own: {', '.join(unread)}", err=True)


def tell_unread_of_rows(jobs: Iterable[Job]) -> None:
    """Name on stderr the settings that rows were given by themselves and their methods do not read."""
    runs = list(jobs)
    for spec in dict.fromkeys(job.spec for job in runs):
        settings = [job.settings for job in runs if job.spec == spec]
        if unread := [key for key in spec.own if _is_unread(key, settings)]:
            typer.echo(f"dqnfed: no effect in {spec.given}: {', '.join(unread)}", err=True)


def tell_without_effect(keys: Sequence[str], runs: Sequence[Settings]) -> None:
    """Name on stderr the keys that change nothing in any of the runs, with the methods of these."""
    if runs and (unread := [key for key in keys if _is_unread(key, runs)]):
        methods = dict.fromkeys(each.method for each in runs)
        typer.echo(f"dqnfed: no effect with {', '.join(methods)}: {', '.join(unread)}", err=True)


def _is_unread(key: str, runs: Sequence[Settings]) -> bool:
    return all(without_effect(each, [key]) for each in runs)
