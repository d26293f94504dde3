"""The line of a client: its audit as canonical JSON, which can be signed; lines read back and held against each other.

A line has no float: figures are decimal text. It is canonical: sorted keys, no spaces, ASCII. A line that is not the
text that its own contents give is not accepted, so that every changed byte is found.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dqnfed_flwr.audit.client_audit import (
    COUNTED,
    DIGITS,
    MEASURED,
    ClientAudit,
    LossRange,
    ModelFigures,
    PairFigures,
    picked,
    range_of,
    rounded,
)
from dqnfed_flwr.audit.weights import FEDERATED, LOCAL, AuditedRun
from dqnfed_flwr.errors import ConfigError, DataError
from dqnfed_flwr.types import Figure

FORMATS = {"dqnfed-audit-1": COUNTED, "dqnfed-audit-2": MEASURED}
"""What a line says of models and pairs, by its format: that of right answers, and that of any other task."""
FIGURE = "figure"
"""Key of a line of the second format alone, as is `floor`: name, direction and unit of the task's own figure."""
FLOOR = "floor"
KEY, SIGNATURE = "key", "signature"
LINES = "*.jsonl"
MOST_BYTES = 2**16
"""Of a line."""
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class AuditLine:
    """A line, where it stands, and what it says; `record` is empty where it is none."""

    place: str
    record: Mapping[str, Any]
    audit: ClientAudit | None
    fault: str = ""


def record_of(audit: ClientAudit) -> dict[str, Any]:
    """An audit as a record of text, whole numbers and mappings."""
    (name,) = (name for name, fields in FORMATS.items() if fields == audit.fields)
    models = {model: picked(found, audit.fields.model) for model, found in audit.models.items()}
    pairs = {other: picked(found, audit.fields.pair) for other, found in audit.pairs.items()}
    own = {} if audit.figure is None else {FIGURE: audit.figure.to_json(), FLOOR: _text(audit.floor)}
    rest = picked(audit, ("run", "partition", "examples", "resamples", "bound"))
    return {"format": name, **_as_text({**rest, "models": models, "pairs": pairs}), **own}


def canonical(record: Mapping[str, Any]) -> str:
    """The one text of a record."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def read_lines(paths: Iterable[Path]) -> list[AuditLine]:
    """All lines of files, and of the .jsonl files of folders, in their order; a faulty line says what is wrong with it.

    Raises
    ------
    ConfigError
        If a file cannot be read, or there is no line at all.
    """
    given = list(paths)
    files = [file for path in given for file in (sorted(path.glob(LINES)) if path.is_dir() else [path])]
    named = Counter(file.name for file in files)
    lines: list[AuditLine] = []
    for file in files:
        place = file.name if named[file.name] == 1 else str(file)
        try:
            texts = file.read_bytes().split(b"\n")
        except OSError as error:
            raise ConfigError(f"{file}: cannot be read ({error.strerror}); give files that clients wrote") from None
        lines += [_read(f"{place}:{number}", text) for number, text in enumerate(texts, 1) if text]
    if not lines:
        raise ConfigError(f"no line in {', '.join(map(str, given))}; give files that dqnfed audit --client wrote")
    return lines


def usable(lines: Sequence[AuditLine], run: AuditedRun) -> tuple[list[ClientAudit], list[str]]:
    """The audits that can be believed to be of this run and of one client each, and what is wrong with other lines."""
    faults = faults_of(lines, run)
    found = [line.audit for line in lines if line.audit and line.place not in faults]
    return found, [f"{place}: {why}" for place, why in faults.items()]


def faults_of(lines: Sequence[AuditLine], run: AuditedRun | None) -> dict[str, str]:
    """What is wrong with lines, by place: unreadable, of another run or model, or of a client that has several.

    Where `run` is not given, what most lines say is taken for its name, its form and its models.
    """
    readable = [line.audit for line in lines if line.audit]
    name = run.name if run else _most_common([audit.run for audit in readable])
    readable = [audit for audit in readable if audit.run == name]
    expected = _models(readable, run)
    forms = Counter((audit.floor, audit.bound, audit.resamples, audit.figure) for audit in readable)
    within = LossRange(*map(rounded, range_of(run))) if run else None
    count = Counter(audit.partition for audit in readable)
    faults = {line.place: line.fault for line in lines if line.fault}
    for line in lines:
        if (audit := line.audit) is None:
            continue
        others = [model for model, found in audit.models.items() if expected.get(model, found.digest) != found.digest]
        if audit.run != name:
            faults[line.place] = f"client {audit.partition}: of run {audit.run}, not {name}"
        elif others:
            faults[line.place] = (
                f"client {audit.partition}: another model than the others' or the run's: {', '.join(others)}"
            )
        elif count[audit.partition] > 1:
            faults[line.place] = f"client {audit.partition}: {count[audit.partition]} lines are of this client"
        elif run and audit.partition not in run.clients:
            faults[line.place] = f"client {audit.partition}: the run has clients 0..{run.settings.clients - 1}"
        elif run and audit.figure != run.figure:
            figure = "right answers" if audit.figure is None else audit.figure.name
            faults[line.place] = f"client {audit.partition}: its figure is {figure}, not that of the run"
        elif within and (audit.floor, audit.bound) != within:
            ends = f"{audit.floor:.{DIGITS}g} and {audit.bound:.{DIGITS}g}"
            asked = f"{within.floor:.{DIGITS}g} and {within.bound:.{DIGITS}g}"
            faults[line.place] = f"client {audit.partition}: losses cut off at {ends}, the run asks for {asked}"
        elif (audit.floor, audit.bound, audit.resamples, audit.figure) != forms.most_common(1)[0][0]:
            faults[line.place] = (
                f"client {audit.partition}: another bound or number of draws than the others, or figure"
            )
    return faults


def _models(audits: Sequence[ClientAudit], run: AuditedRun | None) -> dict[str, str]:
    """The hash of each model that all clients share: of the run's own as it lies there, of others what most say."""
    names = {name for audit in audits for name in audit.models} - {LOCAL}
    found = {name: _most_common([a.models[name].digest for a in audits if name in a.models]) for name in names}
    return {**found, FEDERATED: run.weights.digest} if run else found


def _most_common(values: Sequence[str]) -> str:
    return Counter(values).most_common(1)[0][0] if values else ""


def _read(place: str, text: bytes) -> AuditLine:
    """One line; a fault where it is none."""
    try:
        if len(text) > MOST_BYTES:
            raise ValueError(f"{len(text)} bytes; a line has at most {MOST_BYTES}")
        record = json.loads(text.decode("ascii"), parse_float=_no_float, parse_constant=_no_float)
        if not isinstance(record, dict) or record.get("format") not in FORMATS:
            raise ValueError(f"its format is not {' or '.join(FORMATS)}")
        if canonical(record).encode() != text:
            raise ValueError("its text is not the one that its contents give")
        return AuditLine(place, record, _audit_of(record))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, DataError) as error:
        return AuditLine(place, {}, None, f"changed, or no line of a client: {error}")


def _no_float(text: str) -> float:
    raise ValueError(f"{text} is a float")


def _audit_of(record: Mapping[str, Any]) -> ClientAudit:
    """The audit of a record, whose figures are checked; raises what does not fit."""
    known = {"format", "run", "partition", "examples", "resamples", "bound", "models", "pairs", KEY, SIGNATURE}
    own = FORMATS[record["format"]] is MEASURED
    if own:
        known |= {FIGURE, FLOOR}
    if unknown := sorted(record.keys() - known):
        raise DataError(f"unknown: {unknown[0]!r}")
    if (KEY in record) != (SIGNATURE in record):
        raise DataError("key and signature belong together")
    if not all(isinstance(record.get(name, ""), str) for name in (KEY, SIGNATURE)):
        raise DataError("key and signature are texts")
    if not isinstance(record["run"], str) or not record["run"].isprintable():
        raise DataError("its run has no name")
    examples = _count(record["examples"])
    floor = _figure(record[FLOOR], -math.inf, math.inf) if own else 0.0
    within = LossRange(floor, _figure(record["bound"], floor, math.inf))
    figure = _figure_named(record[FIGURE]) if own else None
    models = {str(name): _model(found, examples, within, figure) for name, found in record["models"].items()}
    pairs = {str(name): _pair(found, within, counted=not own) for name, found in record["pairs"].items()}
    if models.keys() != {FEDERATED, *pairs} or FEDERATED in pairs or not all(map(str.isprintable, models)):
        raise DataError("models and pairs do not belong together")
    for name, pair in pairs.items():
        _check_counts(pair, models[FEDERATED], models[name], examples)
        _check_losses(pair, models[FEDERATED], models[name])
    partition, resamples = _count(record["partition"]), _count(record["resamples"], 1)
    return ClientAudit(record["run"], partition, examples, resamples, within.bound, models, pairs, figure, floor)


def _figure_named(found: Mapping[str, Any]) -> Figure:
    name, higher, percent = _fields(found, ("name", "higher_is_better", "percent"))
    if not isinstance(name, str) or not name or not name.isprintable():
        raise DataError("its figure has no name")
    if not isinstance(higher, bool) or not isinstance(percent, bool):
        raise DataError("direction and unit of its figure are yes or no")
    return Figure(name, higher, percent)


def _model(found: Mapping[str, Any], examples: int, within: LossRange, figure: Figure | None) -> ModelFigures:
    digest, *rest = _fields(found, (COUNTED if figure is None else MEASURED).model)
    if not isinstance(digest, str) or len(digest) != 64 or not _HEX.issuperset(digest):
        raise DataError("a model's hash is no SHA-256")
    if figure is None:
        correct, loss = rest
        return ModelFigures(digest, _count(correct, 0, examples), _figure(loss, *within))
    loss, value = rest
    if not examples and value is not None:
        raise DataError("a figure of no sample")
    limits = figure.limits or (-math.inf, math.inf)
    return ModelFigures(digest, None, _figure(loss, *within), None if value is None else _figure(value, *limits))


def _pair(found: Mapping[str, Any], within: LossRange, *, counted: bool) -> PairFigures:
    values = _fields(found, (COUNTED if counted else MEASURED).pair)
    *counts, difference, low, high, worse, better = values
    only, other = map(_count, counts) if counted else (None, None)
    most = within.span + _rounding(*within) * (within.floor != 0)  # both ends are rounded
    figures = [_figure(value, -most, most) for value in (difference, low, high)]
    if not figures[1] <= figures[0] <= figures[2]:
        raise DataError("a difference lies outside of its interval")
    chances = [_figure(value, 0, 1) for value in (worse, better)]
    if min(chances) <= 0:
        raise DataError("a p-value is 0")
    return PairFigures(only, other, *figures, *chances)


def _check_counts(pair: PairFigures, federated: ModelFigures, other: ModelFigures, examples: int) -> None:
    """Right answers of the two models and those of one alone must agree, where there are any."""
    mine, theirs, only, others = federated.correct, other.correct, pair.only_federated, pair.only_other
    if mine is None or theirs is None or only is None or others is None:
        return
    if only - others != mine - theirs or only > mine or others > theirs or only + theirs > examples:
        raise DataError("counts of right answers contradict each other")


def _check_losses(pair: PairFigures, federated: ModelFigures, other: ModelFigures) -> None:
    """The losses of the two models and their difference must agree."""
    if abs(federated.loss - other.loss - pair.difference) > _rounding(federated.loss, other.loss):
        raise DataError("losses contradict each other")


def _rounding(one: float, other: float) -> float:
    """What rounding of two figures may do to their difference."""
    return 10.0 ** (2 - DIGITS) * (abs(one) + abs(other))


def _fields(found: Mapping[str, Any], names: Iterable[str]) -> list[Any]:
    wanted = list(names)
    if found.keys() != set(wanted):
        raise DataError(f"found {sorted(found)}; need {sorted(wanted)}")
    return [found[name] for name in wanted]


def _count(value: Any, least: int = 0, most: int = 10**9) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise DataError(f"found {value!r}; need a whole number from {least} to {most}")
    return value


def _figure(text: Any, least: float, most: float) -> float:
    """A figure from its text, which must be the one that is written for it."""
    if not isinstance(text, str):
        raise DataError(f"found {text!r}; need a number as text")
    value = float(text)
    if not (math.isfinite(value) and least <= value <= most) or _text(value) != text:
        raise DataError(f"found {text!r}; need a number from {least:g} to {most:g} in {DIGITS} digits")
    return value


def _as_text(value: Any) -> Any:
    """Floats as text, in mappings at any depth."""
    if isinstance(value, Mapping):
        return {key: _as_text(inner) for key, inner in value.items()}
    return _text(value) if isinstance(value, float) else value


def _text(value: float) -> str:
    return f"{value:.{DIGITS}g}"
