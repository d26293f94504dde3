"""From a part of a manifest to the plan of a comparison: its rows, and how it differs from what was published."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from dqnfed_flwr.compare.plan import VALIDATION, VALIDATION_SHARE, Plan, plan_rows
from dqnfed_flwr.compare.row_specs import ALL, RowSpec, concerns, parse_methods, parse_seeds, yaml_text
from dqnfed_flwr.config import KNOWN, Scalar, Settings
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.reproduce.schema import ManifestRow, Part
from dqnfed_flwr.schema.plan import LENGTH_KEYS

SMALLER = ("rounds", *(key for key, known in KNOWN.items() if known.size and key != "rounds"))
EVALUATIONS = "evaluate-every"
"""Decides which rounds enter, once accuracies are averaged over several evaluations."""
QUIET = tuple(key for key, known in KNOWN.items() if known.changes != "experiment")
"""Settings that leave the experiment what it is, or of which the label speaks in its own words."""
AS_IN_MANIFEST = "As in the manifest: what the paper leaves open was chosen, as it is listed at the end of the report"
NAMES = {"split.samples": "training samples", "split.groups": "natural groups"}


@dataclass(frozen=True, slots=True)
class ReproduceOptions:
    """What the command line asks for.

    `reduced` takes the form for two cores; `methods` and `seeds` are as in `dqnfed compare`, empty for those of the
    manifest; `overrides` are dotted keys laid over all.
    """

    reduced: bool = False
    methods: str = ""
    seeds: str = ""
    overrides: Mapping[str, Scalar] = field(default_factory=dict)


class PaperName(NamedTuple):
    """The paper's name of a row, empty for one that it has not, and whether ours has the settings of that row."""

    name: str
    same: bool


def config_of(part: Part, options: ReproduceOptions) -> dict[str, Scalar]:
    """Dotted keys that all rows of a part share; the same whichever rows are asked for, so that more may be added."""
    searched = any(_axes(row, part, options) for row in part.rows)
    validation = {VALIDATION: VALIDATION_SHARE} if searched else {}
    return {**validation, **part.own, **(part.reduced.own if options.reduced else {}), **options.overrides}


def seeds_of(part: Part, seeds: Sequence[int], options: ReproduceOptions) -> tuple[int, ...]:
    """The final seeds: those asked for, else of the reduced form, else of the manifest."""
    if options.seeds:
        return parse_seeds(options.seeds)
    return tuple(part.reduced.seeds if options.reduced else seeds)


def plan_part(part: Part, seeds: Sequence[int], options: ReproduceOptions, directory: Path) -> Plan:
    """The plan of a part, checked.

    Raises
    ------
    ConfigError
        If a method is unknown, or settings are at fault.
    """
    config = config_of(part, options)
    if (task := config.get("task", "classification")) != "classification":
        raise ConfigError(f"task: found {task!r}; published tables are of accuracy, so classification is allowed")
    rounds, length = part.search.rounds, config.get("rounds")
    if rounds is not None and isinstance(length, int):
        rounds = min(rounds, length)
    rows = selected_rows(part, options.methods) if options.methods else part.rows
    specs = [_spec(row, part, options) if isinstance(row, ManifestRow) else row for row in rows]
    finals, skip = seeds_of(part, seeds, options), options.methods.strip() == ALL
    plan = plan_rows(config, specs, finals, directory, rounds, part.search.seed, skip=skip)
    return replace(plan, note=label_of(part, seeds, plan))


def paper_names(part: Part, specs: Sequence[RowSpec]) -> list[PaperName]:
    """What the paper calls every row.

    A row with other settings has the name of the only one that the paper has of its method, if there is only one.
    """
    exact = {_key(row): row.paper for row in part.rows}
    by_method: dict[str, list[str]] = {}
    for row in part.rows:
        if row.paper:
            by_method.setdefault(row.method, []).append(row.paper)
    alone = {method: names[0] for method, names in by_method.items() if len(names) == 1}
    return [
        PaperName(exact[key], same=True) if key in exact else PaperName(alone.get(spec.method, ""), same=False)
        for key, spec in zip(map(_key, specs), specs, strict=True)
    ]


def selected_rows(part: Part, methods: str) -> list[ManifestRow | RowSpec]:
    """Read `NAME,method,method@key=value`, each row once.

    A name that the paper or our tables give a row, whatever its case, takes that row, commas in it or not. The name of
    a method, as this package writes it, takes all rows of that method, and where there is none the method with its
    defaults.

    Raises
    ------
    ConfigError
        As `parse_methods`, for what is no name of a row; it lists these names too.
    """
    if methods.strip() == ALL:
        return _rows_of(part, parse_methods(methods))
    names = [(name, row) for row in part.rows for name in _names(row, part) if name]
    named: dict[str, list[ManifestRow]] = {}
    for name, row in names:
        named.setdefault(name.lower(), []).append(row)
    words = _words(methods, list(named))
    ours = {row.method for row in part.rows}  # `fedavg` is a method, `FedAvg` the name of a row
    specs = [word for word in words if word.lower() not in named or word in ours]
    try:
        read = dict(zip(specs, parse_methods(",".join(specs)), strict=True)) if specs else {}
    except ConfigError as error:
        raise ConfigError(f"{error}\nrows here: {', '.join(dict.fromkeys(name for name, _ in names))}") from None
    found: list[ManifestRow | RowSpec] = []
    for word in words:
        found += _rows_of(part, [read[word]]) if word in read else named[word.lower()]
    return [row for place, row in enumerate(found) if row not in found[:place]]


def label_of(part: Part, seeds: Sequence[int], plan: Plan) -> str:
    """How a plan, or one that was carried out, differs from the part with its seeds; empty if it does not."""
    quiet = [key for key in QUIET if part.last == 1 or key != EVALUATIONS]
    scale = deviations(part.own, _read(part, plan), plan.seeds, seeds, quiet)
    texts = (_rows_added(part, plan), _grids_omitted(part, plan), _samples_omitted(part, plan))
    omitted = [text for text in texts if text]
    return "; ".join([scale or "as in the manifest", *omitted]) if scale or omitted else ""


def deviations(
    full: Mapping[str, Scalar],
    here: Mapping[str, Scalar],
    seeds: Sequence[int] = (),
    full_seeds: Sequence[int] = (),
    quiet: Collection[str] = QUIET,
) -> str:
    """What is smaller, and what is different: `reduced: rounds 200 of 2000; changed: model mlp for resnet18-gn`.

    `full` and `here` are dotted keys of the experiment and of the run; absent ones take their defaults. `quiet` keys
    are not looked at.
    """
    defaults = Settings().flat()
    reduced, changed = [], []
    for key in [*SMALLER, *sorted((full.keys() | here.keys()) - {*SMALLER, *quiet})]:
        then, now = full.get(key, defaults.get(key, "")), here.get(key, defaults.get(key, ""))
        if now == then:
            continue
        if key in SMALLER and _size(key, now) < _size(key, then):
            reduced.append(f"{NAMES.get(key, key)} {yaml_text(now)} of {yaml_text(then) if then else 'all'}")
        else:
            changed.append(f"{key} {yaml_text(now)}" + (f" for {yaml_text(then)}" if then != "" else ""))
    if set(seeds) < set(full_seeds):
        reduced.append(f"seeds {len(seeds)} of {len(full_seeds)}")
    elif not set(full_seeds) <= set(seeds):
        changed.append(f"seeds {' '.join(map(str, seeds))} for {' '.join(map(str, full_seeds))}")
    parts = [f"{word}: {', '.join(found)}" for word, found in (("reduced", reduced), ("changed", changed)) if found]
    return "; ".join(parts)


def _size(key: str, value: Scalar) -> float:
    return float(value) if value or KNOWN[key].size != "size or all" else float("inf")


def _read(part: Part, plan: Plan) -> dict[str, Scalar]:
    """The shared settings of a plan, without those laid over the part's that every row replaces or none reads."""

    def counts(key: str) -> bool:
        return any(concerns(key, spec, plan.config) and key not in spec.axes for spec in plan.specs)

    return {key: value for key, value in plan.config.items() if key in part.own or counts(key)}


def _rows_added(part: Part, plan: Plan) -> str:
    known = {_key(row) for row in part.rows}
    added = [spec.given for spec in plan.specs if spec.own and _key(spec) not in known]
    return f"rows with settings of their own: {', '.join(added)}" if added else ""


def _grids_omitted(part: Part, plan: Plan) -> str:
    gridded = {row.method: row.grid for row in part.rows if row.grid}
    having = [spec for spec in plan.specs if spec.method in gridded]
    left = [spec for spec in having if not gridded[spec.method].keys() <= spec.axes.keys()]
    if not left:
        return ""
    if len(left) < len(having) and not any(spec.axes for spec in left):
        return f"no grid searched for {', '.join(spec.title for spec in left)}"
    lengths = [spec.title for spec in having if spec.axes]
    return "no grids searched" + (f", but for the step length of {', '.join(lengths)}" if lengths else "")


def _samples_omitted(part: Part, plan: Plan) -> str:
    then, now = (float(config.get(VALIDATION, 0)) for config in (part.own, plan.config))
    if now <= then:
        return ""
    rest = ""
    if any(row.grid for row in part.rows):
        searched = any(spec.axes for spec in plan.specs)
        rest = ": the rest chose the settings" if searched else ": the rest is kept for choosing settings"
    return f"training samples {100 * (1 - now):g} %{rest}"


def _axes(row: ManifestRow, part: Part, options: ReproduceOptions) -> dict[str, tuple[Scalar, ...]]:
    """What is searched for a row: in the reduced form step lengths alone, for without one a row stands for nothing."""
    whole = part.reduced.grids or not options.reduced
    return {key: tuple(values) for key, values in row.grid.items() if whole or key in LENGTH_KEYS}


def _spec(row: ManifestRow, part: Part, options: ReproduceOptions) -> RowSpec:
    return RowSpec(row.method, row.own, _axes(row, part, options), row.shown)


def _key(row: ManifestRow | RowSpec) -> tuple[str, tuple[tuple[str, Scalar], ...]]:
    return row.method, tuple(sorted(row.own.items()))


def _names(row: ManifestRow, part: Part) -> tuple[str, ...]:
    """What the paper and our tables call a row."""
    return (row.shown or Settings.from_mapping({**part.own, **row.own, "method": row.method}).title, row.paper)


def _words(methods: str, names: list[str]) -> list[str]:
    """`methods` at its commas, but for those inside a name; the longest name counts."""
    name = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    pattern = re.compile(rf"\s*((?:{name})(?=\s*,)|[^,]*?)\s*,", re.IGNORECASE)
    return list(dict.fromkeys(match[1] for match in pattern.finditer(f"{methods},")))


def _rows_of(part: Part, wanted: list[RowSpec]) -> list[ManifestRow | RowSpec]:
    found: list[ManifestRow | RowSpec] = []
    for spec in wanted:
        found += [row for row in part.rows if row.method == spec.method and not spec.own] or [spec]
    return found
