"""The text of a run's metrics file: its families, read, labelled with the run and joined with those of other runs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from dqnfed_flwr.telemetry.textfile import HEADER, TRAILER

_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\n"])*"'
_SAMPLE = re.compile(
    rf"(?P<name>dqnfed_[a-zA-Z0-9_]+)(?:\{{(?P<labels>{_LABEL}(?:,{_LABEL})*)\}})? "
    r"(?P<value>[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|Inf)|NaN)"
)
_HEAD = re.compile(r"# (?P<word>HELP|TYPE) (?P<name>dqnfed_[a-zA-Z0-9_]+) (?P<text>.*)")
_VALUE = re.compile(r'(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)="(?P<value>(?:[^"\\]|\\.)*)"')
_RUN = re.compile(r'(?:^|,)run="')
_PARTS = ("", "_bucket", "_sum", "_count")
"""What may follow the family's name in a sample's."""

Stamp = tuple[int, int, int]


@dataclass(slots=True)
class Family:
    """HELP and TYPE lines of a family, and the lines of its samples, labelled."""

    head: str
    kind: str = ""
    lines: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RunFile:
    """A file as it was read.

    Attributes
    ----------
    name : str
        Of the run.
    stamp : tuple[int, int, int]
        Inode, size and time of change, which tell a new file from the one that was read.
    families : dict[str, Family]
        By name; empty where the file is damaged.
    figures : dict[str, float]
        Samples without labels, by name.
    info : dict[str, str]
        Labels of `dqnfed_run_info`.
    state : str
        The state that is 1.
    fault : str
        Why it could not be read, empty otherwise.
    """

    name: str
    stamp: Stamp
    families: dict[str, Family] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    info: dict[str, str] = field(default_factory=dict)
    state: str = ""
    fault: str = ""


def join(runs: list[RunFile]) -> str:
    """One exposition of all runs: each family once, its samples from every run.

    A family that two versions of this package gave different types is served from the run changed last.
    """
    families: dict[str, Family] = {}
    for run in runs:
        for name, family in run.families.items():
            joined = families.setdefault(name, Family(family.head, family.kind))
            if joined.kind == family.kind:
                joined.lines += family.lines
    return "".join(family.head + "".join(family.lines) for family in families.values())


def parse_run(name: str, text: str, stamp: Stamp) -> RunFile:
    """A run's file, its samples labelled.

    Raises
    ------
    ValueError
        If it holds anything else than families of this package, each once and with its samples below it.
    KeyError
        If a state has no name.
    """
    families: dict[str, Family] = {}
    figures: dict[str, float] = {}
    info: dict[str, str] = {}
    states = [""]
    label = f'run="{_escaped(name)}"'
    current, family = "", Family("")
    for line in text.splitlines():
        if match := _SAMPLE.fullmatch(line):
            metric, labels, value = match.groups()
            if labels and _RUN.search(labels):
                raise ValueError(f"{metric} names a run")
            if not family.kind or metric.removeprefix(current) not in _PARTS:
                raise ValueError(f"{metric} stands outside its family")
            family.lines.append(f"{metric}{{{label}{',' if labels else ''}{labels or ''}}} {value}\n")
            if not labels:
                figures[metric] = float(value)
            elif metric == "dqnfed_run_info":
                info |= _labels(labels)
            elif metric == "dqnfed_run_state" and float(value):
                states.append(_labels(labels)["state"])
        elif match := _HEAD.fullmatch(line):
            if match["word"] == "HELP":
                current = match["name"]
                if current in families:
                    raise ValueError(f"{current} stands there twice")
                family = families[current] = Family(f"{line}\n")
            elif match["name"] == current:
                family.head, family.kind = f"{family.head}{line}\n", match["text"]
            else:
                raise ValueError(f"the type of {match['name']} stands outside its family")
        elif line and line != TRAILER.strip() and not line.startswith(HEADER):
            raise ValueError(f"no sample: {line[:80]!r}")
    for family in families.values():
        family.lines = ["".join(family.lines)]
    return RunFile(name, stamp, families, figures, info, states[-1])


def _escaped(value: str) -> str:
    """A label's value as it stands between quotes."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _labels(text: str) -> dict[str, str]:
    return {match["name"]: match["value"] for match in _VALUE.finditer(text)}
