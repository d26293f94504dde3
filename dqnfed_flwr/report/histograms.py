"""Classes of every client, as a CSV file and as a picture."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import RunError
from dqnfed_flwr.report.plots import STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap

    from dqnfed_flwr.data.clients import ClientSummary

WIDEST_TITLE = 80
"""Characters above the picture."""
FEW, MANY = 20, 25
"""Clients up to which the picture names each, and writes counts into its cells, where there are so few classes."""
_BLUES = ("#f3f7fb", "#0072B2", "#00263d")


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
