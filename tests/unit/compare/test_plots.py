from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image

from dqnfed_flwr.compare.curve_plots import draw_rho
from dqnfed_flwr.compare.labels import label_points
from dqnfed_flwr.compare.palette import GREY, colours_of
from dqnfed_flwr.compare.plots import plot_comparison
from dqnfed_flwr.compare.spreading import spread
from dqnfed_flwr.errors import RunError
from dqnfed_flwr.methods.table import METHODS
from dqnfed_flwr.report.plots import COLOURS
from tests.helpers.comparisons import make_comparison

FIGURES = ["accuracy.png", "clients.png", "rho.png", "fairness.png"]
NAMES = [name for name in METHODS if name != "fedcorr"]


@given(st.lists(st.floats(-0.5, 1.5), max_size=40), st.floats(0.001, 0.2))
def test_spread_labels_keep_their_distance_and_their_order(wanted: list[float], gap: float) -> None:
    places = spread(wanted, gap, 0.0, 1.0)
    assert all(-1e-9 <= place <= 1 + 1e-9 for place in places)
    room = min(gap, 1 / max(1, len(wanted) - 1))
    assert all(after - before >= room - 1e-9 for before, after in pairwise(sorted(places)))
    order = np.argsort(wanted, kind="stable")
    assert [places[index] for index in order] == sorted(places)


def test_spread_by_hand() -> None:
    assert spread([0.1, 0.9], 0.2, 0.0, 1.0) == pytest.approx([0.1, 0.9])
    assert spread([0.5, 0.5], 0.2, 0.0, 1.0) == pytest.approx([0.4, 0.6])
    assert spread([1.0, 0.98], 0.1, 0.0, 1.0) == pytest.approx([1.0, 0.9])
    assert spread([0.5] * 3, 0.9, 0.0, 1.0) == pytest.approx([0.0, 0.5, 1.0])


def test_labels_of_points_do_not_overlap_where_there_is_room() -> None:
    figure = Figure(figsize=(8, 6))
    axes = figure.subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    rng = np.random.default_rng(0)
    points = [(0.5 + 0.1 * float(x), 0.5 + 0.1 * float(y)) for x, y in rng.standard_normal((12, 2))]
    label_points(axes, [(x, y, f"method {place}", GREY, place < 3) for place, (x, y) in enumerate(points)])
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == 12
    crowded = [(a, b) for a in range(12) for b in range(a) if boxes[a].shrunk(0.9, 0.9).overlaps(boxes[b])]
    assert crowded == []


def test_the_reference_and_the_best_stand_out() -> None:
    names = ["mgda", "dqn-fed", "fedavg", "fedsgd", "afl", "term", "median", "krum"]
    many = make_comparison({name: [(0.5 + place / 100,) * 4] for place, name in enumerate(names)})
    colours = colours_of(many)
    bright = {names[place]: colour for place, colour in colours.items() if colour != GREY}
    assert bright == dict(zip(["dqn-fed", "krum", "median", "term", "afl", "fedsgd"], COLOURS, strict=True))
    assert colours[0] == colours[2] == GREY
    few = colours_of(make_comparison({"fedavg": [(0.5, 0.6)], "mgda": [(0.5, 0.6)]}, failed={"krum": "lost"}))
    assert list(few.values()) == list(COLOURS[:2])


@pytest.mark.parametrize("count", [1, 14])
def test_pictures_of_few_and_many_methods(tmp_path: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    runs = {name: [tuple(rng.uniform(0.6, 1.0, 4)), tuple(rng.uniform(0.6, 1.0, 4))] for name in NAMES[:count]}
    runs[NAMES[0]] = [(0.0,) * 4] if count > 1 else runs[NAMES[0]]  # far from all others
    paths = plot_comparison(make_comparison(runs, failed={"fedcorr": "lost"}), tmp_path)
    assert [path.name for path in paths] == FIGURES
    for path in paths:
        with Image.open(path) as image:
            assert image.width > 400
            assert len(set(np.asarray(image.convert("L")).ravel())) > 10


def test_nothing_to_draw_and_no_place_for_it(tmp_path: Path) -> None:
    assert plot_comparison(make_comparison({"fedavg": [()]}), tmp_path) == []
    with pytest.raises(RunError, match="cannot be written"):
        plot_comparison(make_comparison({"fedavg": [(0.5,)]}), tmp_path / "none")


def test_missing_matplotlib_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RunError, match=r"dqnfed-flwr\[plots\]"):
        plot_comparison(make_comparison({"fedavg": [(0.5,)]}), tmp_path)


def test_rho_is_drawn_over_whole_rounds() -> None:
    comparison = make_comparison({"dqn-fed": [(0.5, 0.6)], "fedavg": [(0.4, 0.5)]})
    figure = Figure(figsize=(8, 5))
    draw_rho(comparison, colours_of(comparison), figure)
    assert [tick for tick in figure.axes[0].get_xticks() if tick != round(tick)] == []
