"""Classes, or targets, of every client: as a table for the screen and as a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dqnfed_flwr.engine.notices import listed
from dqnfed_flwr.errors import writing
from dqnfed_flwr.report.table import print_fitting

if TYPE_CHECKING:
    from dqnfed_flwr.data.clients import ClientSummary, TargetSummary


WIDEST = 12
"""Classes that have a column each; of more, the largest are named."""
LONGEST = 40
"""Clients on the screen."""
MOST_NAMED = 10
"""Clients named in a note."""
LARGEST = "largest classes"
_NAMED = 3
_MORE = {
    "dirichlet": "raise split.alpha",
    "shards": "raise split.shards",
    "pathological": "raise split.classes",
    "one-class": "join classes with split.merge",
}


def print_classes(console: Console, clients: Sequence[ClientSummary], title: str) -> None:
    """Print a row a client and one of all of them, below a title.

    Classes have a column each where there are few of them and the terminal is wide enough; in a pipe the table is as
    wide as it is.
    """
    wide = class_table(clients, title, by_class=len(clients[0].train) <= WIDEST)
    print_fitting(console, wide, class_table(clients, title, by_class=False))


def class_table(clients: Sequence[ClientSummary], title: str, *, by_class: bool) -> Table:
    """Samples of each client, by class or with its largest classes; more than `LONGEST` clients are cut off."""
    noisy, grouped = any(client.wrong for client in clients), any(client.groups for client in clients)
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    classes = [str(label) for label in range(len(clients[0].train))] if by_class else [LARGEST]
    for heading in ("k", "train", "test", *classes, "lacks", *["wrong"] * noisy, *["groups"] * grouped):
        table.add_column(heading, justify="left" if heading in (LARGEST, "groups") else "right")
    shown = clients[:LONGEST]
    for number, client in enumerate((*shown, _whole(clients))):
        cells = [
            str(number) if number < len(shown) else "all",
            str(client.samples),
            str(client.test.sum()),
            *([_count(count) for count in client.train] if by_class else [_largest(client)]),
            _count(len(client.lacking)),
            *[_wrong(client)] * noisy,
            *[_groups(client.groups)] * grouped,
        ]
        table.add_row(*cells, end_section=number == len(shown) - 1)
    return table


def names_table(clients: Sequence[ClientSummary]) -> Table:
    """Number, name and samples of every class, of all clients together."""
    table = Table(title="Classes", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("class", "name", "train", "test"):
        table.add_column(heading, justify="left" if heading == "name" else "right", overflow="fold")
    whole = _whole(clients)
    for label, (trained, tested) in enumerate(zip(whole.train, whole.test, strict=True)):
        name = whole.class_names[label] if label < len(whole.class_names) else ""
        table.add_row(str(label), Text(name), _count(trained), _count(tested))
    return table


def _count(number: int) -> str:
    return str(number) if number else "·"


def _largest(client: ClientSummary) -> str:
    largest = np.argsort(-client.train, kind="stable")[:_NAMED]
    share = 100 / max(client.samples, 1)
    return ", ".join(f"{label}: {client.train[label] * share:.0f} %" for label in largest if client.train[label])


def _wrong(client: ClientSummary) -> str:
    return f"{100 * client.wrong / max(client.samples, 1):.0f} %" if client.wrong else "·"


def _groups(names: Sequence[str]) -> str:
    shown = ", ".join(names[:2])
    return shown if len(names) <= 2 else f"{len(names)}: {shown}, …"


def _whole(clients: Sequence[ClientSummary]) -> ClientSummary:
    return replace(
        clients[0],
        train=np.sum([client.train for client in clients], axis=0),
        test=np.sum([client.test for client in clients], axis=0),
        validation=sum(client.validation for client in clients),
        wrong=sum(client.wrong for client in clients),
        groups=tuple(sorted({name for client in clients for name in client.groups})),
    )


def notes(clients: Sequence[ClientSummary], partition: str) -> list[str]:
    """What one should know before training, and what to do where it is not meant."""
    used = [client for client in clients if not client.fault]
    lacking = [len(client.lacking) for client in used]
    said = [sizes_note([client.samples for client in used]), *left_out_notes(clients)]
    if untested := [number for number, client in enumerate(clients) if not client.fault and not client.test.any()]:
        said.append(f"clients without a test part, so without a figure: {listed(untested, MOST_NAMED)}")
    if any(lacking):
        advice = f"; where that is not meant, {_MORE[partition]}" if partition in _MORE else ""
        said.append(
            f"{np.count_nonzero(lacking)} of them lack classes, up to {max(lacking)} of {len(clients[0].train)}{advice}"
        )
    nowhere = np.flatnonzero(np.sum([client.train for client in clients], axis=0) == 0)
    if len(nowhere):
        said.append(f"nobody trains on the classes {', '.join(map(str, nowhere[:10]))}{', …' * (len(nowhere) > 10)}")
    noisy = [client for client in clients if client.wrong]
    if noisy:
        shares = [100 * client.wrong / client.samples for client in noisy]
        said.append(f"{len(noisy)} clients have wrong labels, {min(shares):.0f} to {max(shares):.0f} % of theirs")
    return [*said, *cut_notes(len(clients))]


class _Usable(Protocol):
    @property
    def fault(self) -> str: ...


def left_out_notes(clients: Sequence[_Usable]) -> list[str]:
    """Which clients a run would go on without, each with the reason."""
    found = [(number, client.fault) for number, client in enumerate(clients) if client.fault]
    said = [f"a run leaves client {number} out: {fault}" for number, fault in found[:MOST_NAMED]]
    return [*said, *[f"and {len(found) - MOST_NAMED} more clients"] * (len(found) > MOST_NAMED)]


def sizes_note(sizes: Sequence[int]) -> str:
    """How many training samples the clients have, each and in all."""
    return f"{len(sizes)} clients hold {min(sizes):,} to {max(sizes):,} training samples, {sum(sizes):,} in all"


def cut_notes(clients: int) -> list[str]:
    """A note where a table of so many clients was cut off; none where it was not."""
    return [f"the table shows the first {LONGEST} clients; --output writes all of them"] if clients > LONGEST else []


def write_csv(clients: Sequence[ClientSummary], path: Path) -> Path:
    """Write one row a client: samples, wrong labels, groups, and each class in training and test part.

    Raises
    ------
    RunError
        If the file cannot be written.
    """
    labels = range(len(clients[0].train))
    head = ["client", "train", "validation", "test", "classes lacking", "wrong labels", "groups"]
    head += [f"{part} {label}" for part in ("train", "test") for label in labels]
    rows = []
    for number, client in enumerate(clients):
        figures = [client.samples, client.validation, int(client.test.sum()), len(client.lacking), client.wrong]
        counts = [*client.train.tolist(), *client.test.tolist()]
        rows.append([number, *figures, "; ".join(client.groups), *counts])
    return write_rows(path, head, rows)


def write_rows(path: Path, head: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    """Write a CSV file, in UTF-8; its path.

    Raises
    ------
    RunError
        If the file cannot be written.
    """
    with writing(path, "; name another folder with --output"), path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(rows)
    return path


def print_targets(console: Console, clients: Sequence[TargetSummary], title: str) -> None:
    """Print a row a client, of the first `LONGEST`, below a title; where there is no room, without the targets."""
    print_fitting(console, _targets_table(clients, title, figures=True), _targets_table(clients, title, figures=False))


def _targets_table(clients: Sequence[TargetSummary], title: str, *, figures: bool) -> Table:
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("k", "train", "validation", "test", *(clients[0].figures if figures else ())):
        table.add_column(heading, justify="right")
    for number, client in enumerate(clients[:LONGEST]):
        counts = (number, client.train, client.validation, client.test)
        shown = [f"{value:.4g}" for value in client.figures.values()] if figures else []
        table.add_row(*map(str, counts), *shown)
    return table


def target_notes(clients: Sequence[TargetSummary]) -> list[str]:
    """What one should know before training."""
    sizes = [client.train for client in clients if not client.fault]
    return [sizes_note(sizes), *left_out_notes(clients), *cut_notes(len(clients))]


def write_targets(clients: Sequence[TargetSummary], path: Path) -> Path:
    """Write one row a client: samples of each part, and figures of its training targets.

    Raises
    ------
    RunError
        If the file cannot be written.
    """
    rows = [
        [number, client.train, client.validation, client.test, *client.figures.values()]
        for number, client in enumerate(clients)
    ]
    return write_rows(path, ["client", "train", "validation", "test", *clients[0].figures], rows)
