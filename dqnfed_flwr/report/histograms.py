"""Classes of every client: a table for the screen, a CSV file, a picture."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from dqnfed_flwr.errors import RunError
from dqnfed_flwr.report.plots import STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap

    from dqnfed_flwr.data.describe import ClientSummary

WIDEST = 12
"""Classes that have a column each on the screen; of more, the largest are named."""
LONGEST = 40
"""Clients on the screen."""
WIDEST_TITLE = 80
"""Characters above the picture."""
FEW, MANY = 20, 25
"""Clients up to which the picture names each, and writes counts into its cells, where there are so few classes."""
LARGEST = "largest classes"
_NAMED = 3
_MORE = {
    "dirichlet": "raise split.alpha",
    "shards": "raise split.shards",
    "pathological": "raise split.classes",
    "one-class": "join classes with split.merge",
}
_BLUES = ("#f3f7fb", "#0072B2", "#00263d")


def histogram_table(clients: Sequence[ClientSummary], title: str) -> Table:
    """One row a client, then the whole; more than `LONGEST` clients are cut off and said to be."""
    classes, noisy, grouped = len(clients[0].train), any(c.wrong for c in clients), any(c.groups for c in clients)
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in _headings(classes, noisy=noisy, grouped=grouped):
        table.add_column(heading, justify="left" if heading in (LARGEST, "groups") else "right")
    shown = clients[:LONGEST]
    for number, client in enumerate(shown):
        row = _row(str(number), client, noisy=noisy, grouped=grouped)
        table.add_row(*row, end_section=number == len(shown) - 1)
    table.add_row(*_row("all", _whole(clients), noisy=noisy, grouped=grouped))
    return table


def _headings(classes: int, *, noisy: bool, grouped: bool) -> list[str]:
    by_class = [str(label) for label in range(classes)] if classes <= WIDEST else [LARGEST]
    further = ["wrong"] * noisy + ["groups"] * grouped
    return ["k", "train", "test", *by_class, "lacks", *further]


def _row(name: str, client: ClientSummary, *, noisy: bool, grouped: bool) -> list[str]:
    if len(client.train) <= WIDEST:
        by_class = [str(count) if count else "·" for count in client.train]
    else:
        largest = np.argsort(-client.train, kind="stable")[:_NAMED]
        share = 100 / max(client.samples, 1)
        by_class = [
            ", ".join(f"{label}: {client.train[label] * share:.0f} %" for label in largest if client.train[label])
        ]
    wrong = f"{100 * client.wrong / max(client.samples, 1):.0f} %" if client.wrong else "·"
    return [
        name,
        str(client.samples),
        str(client.test.sum()),
        *by_class,
        str(len(client.lacking)) if len(client.lacking) else "·",
        *[wrong] * noisy,
        *[_groups(client.groups)] * grouped,
    ]


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
    lacking = [len(client.lacking) for client in clients]
    sizes = [client.samples for client in clients]
    said = [f"{len(clients)} clients hold {min(sizes):,} to {max(sizes):,} training samples, {sum(sizes):,} in all"]
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
    if len(clients) > LONGEST:
        said.append(f"the table shows the first {LONGEST} clients; --output writes all of them")
    return said


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
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(head)
            for number, client in enumerate(clients):
                figures = [client.samples, client.validation, int(client.test.sum()), len(client.lacking), client.wrong]
                counts = [*client.train.tolist(), *client.test.tolist()]
                writer.writerow([number, *figures, "; ".join(client.groups), *counts])
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror}); name another folder with --output") from None
    return path


def plot_histograms(clients: Sequence[ClientSummary], title: str, path: Path) -> Path:
    """Draw classes against clients as shades, the samples of each client beside them.

    Raises
    ------
    RunError
        If matplotlib is missing or the file cannot be written.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise RunError("the picture needs matplotlib: pip install 'dqnfed-flwr[plots]'") from None
    counts = np.stack([client.train for client in clients])
    with rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=_size(*counts.shape), layout="constrained")
        FigureCanvasAgg(figure)
        shades, sizes = figure.subplots(1, 2, sharey=True, width_ratios=(4, 1))
        _draw_shades(shades, counts)
        _draw_sizes(sizes, clients)
        figure.suptitle(_fitting(title), fontsize=12)
        try:
            figure.savefig(path)
        except OSError as error:
            raise RunError(f"{path}: the picture cannot be written ({error.strerror})") from None
    return path


def _fitting(title: str) -> str:
    """Beginning and end of a title that is wider than the picture, such as one with a long path."""
    third = WIDEST_TITLE // 3
    return title if len(title) <= WIDEST_TITLE else f"{title[:third]} … {title[-2 * third :]}"


def _size(clients: int, classes: int) -> tuple[float, float]:
    return float(np.clip(4 + 0.45 * classes, 8, 14)), float(np.clip(1.9 + 0.3 * clients, 3, 11))


def _draw_shades(axes: Axes, counts: NDArray[np.int64]) -> None:
    """Share of each class in a client's training samples; white where it has none."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.ticker import MaxNLocator

    colours: LinearSegmentedColormap = LinearSegmentedColormap.from_list("shares", _BLUES)
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    shown = np.ma.masked_equal(shares, 0)
    image = axes.imshow(shown, aspect="auto", cmap=colours, vmin=0, vmax=float(shares.max()), interpolation="nearest")
    axes.set(xlabel="class", ylabel="client")
    for axis, many in ((axes.xaxis, counts.shape[1] > MANY), (axes.yaxis, counts.shape[0] > MANY)):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=20 if many else MANY, min_n_ticks=1))
    if counts.shape[0] <= FEW and counts.shape[1] <= FEW:
        for (client, label), count in np.ndenumerate(counts):
            if count:
                dark = shares[client, label] > 0.45 * shares.max()
                axes.text(label, client, f"{count:,}", ha="center", va="center", fontsize=8, color="wk"[not dark])
    bar = axes.figure.colorbar(image, ax=axes, pad=0.015, fraction=0.04)
    bar.set_label("% of the client's samples")
    bar.outline.set_visible(False)


def _draw_sizes(axes: Axes, clients: Sequence[ClientSummary]) -> None:
    """Training samples of each client, those with wrong labels apart."""
    places: Any = np.arange(len(clients))
    right = np.array([client.samples - client.wrong for client in clients])
    wrong = np.array([client.wrong for client in clients])
    axes.barh(places, right, color="#0072B2", height=0.85, label="right labels")
    if wrong.any():
        axes.barh(places, wrong, left=right, color="#D55E00", height=0.85, label="wrong labels")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), fontsize=8, borderaxespad=0.2)
    axes.set(xlabel="training samples")
    axes.locator_params(axis="x", nbins=4)
    axes.tick_params(axis="y", left=False, labelleft=False)
