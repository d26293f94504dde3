from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from dqnfed_flwr.compare.plan import Plan
from dqnfed_flwr.compare.results import Comparison, Row, mean_figure
from dqnfed_flwr.compare.row_specs import RowSpec
from dqnfed_flwr.config.methods import METHODS
from dqnfed_flwr.errors import RunError
from dqnfed_flwr.report.comparison_plots import fairness_chart, mean_chart, plot_comparison, rho_chart
from dqnfed_flwr.report.labels import POINTS, Look, bright_names, curve_of, look_of
from tests.helpers.comparisons import make_comparison, make_record
from tests.helpers.runs import changed

FIGURES = ["accuracy.png", "clients.png", "rho.png", "fairness.png"]
OURS = RowSpec("dqn-fed")
NAMES = [name for name in METHODS if name != "fedcorr"]


@pytest.mark.parametrize("chart", [rho_chart, fairness_chart])
def test_names_of_rows_do_not_overlap_each_other_or_what_is_drawn(
    chart: Callable[[Comparison, Look], Figure],
) -> None:
    rng = np.random.default_rng(0)
    runs = {name: [tuple(rng.uniform(0.6, 1.0, 4)), tuple(rng.uniform(0.6, 1.0, 4))] for name in NAMES[:14]}
    comparison = make_comparison(runs)
    figure = chart(comparison, look_of(comparison, []))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == len(comparison.comparable(dict.fromkeys(range(14))) if chart is fairness_chart else runs)
    assert [(a, b) for a in range(len(boxes)) for b in range(a) if boxes[a].shrunk(0.9, 0.9).overlaps(boxes[b])] == []
    assert all(axes.get_window_extent().x1 < box.x0 and box.x1 < figure.bbox.x1 for box in boxes)


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


def test_rounds_are_whole_numbers() -> None:
    comparison = make_comparison({"dqn-fed": [(0.5, 0.6)], "fedavg": [(0.4, 0.5)]})
    look = look_of(comparison, bright_names([comparison]))
    for figure in (rho_chart(comparison, look), mean_chart(comparison, look, "rounds")):
        assert [tick for tick in figure.axes[0].get_xticks() if tick != round(tick)] == []


def test_a_row_far_below_the_others_stands_at_the_edge_with_its_figures() -> None:
    runs = {name: [(0.9 + place / 100,) * 4] for place, name in enumerate(NAMES[:8])}
    comparison = make_comparison({**runs, NAMES[8]: [(0.123,) * 4]})
    (axes,) = fairness_chart(comparison, look_of(comparison, [])).axes
    assert axes.get_xlim()[0] > 80
    assert sum(text.get_text().endswith(" (12, 12)") for text in axes.texts) == 1


def test_long_curves_are_thinned() -> None:
    entry = RowSpec("fedavg", title="FedAvg")
    row = Row(entry, {}, (make_record(entry, 0, (0.5, 0.7), rounds=2000),))
    plan = Plan({}, (entry,), (0,), Path("nowhere"), 0)
    comparison = Comparison(plan, [row], None, "mean", 1)
    (axes,) = mean_chart(comparison, look_of(comparison, []), "rounds").axes
    found = np.asarray(axes.lines[0].get_xydata())
    assert len(found) == POINTS
    assert found[-1] == pytest.approx([2000, 60])


def test_curves_are_means_over_seeds_against_rounds_traffic_and_time() -> None:
    found = curve_of([make_record(OURS, 0, (0.6, 0.6)), make_record(OURS, 1, (0.9, 0.9))], mean_figure)
    assert found is not None
    assert found.rounds.tolist() == [1, 2, 3]
    np.testing.assert_allclose(found.megabytes, [3, 6, 9])
    np.testing.assert_allclose(found.seconds, [0.5, 1.0, 1.5])
    np.testing.assert_allclose(found.mean, [0.25, 0.5, 0.75])
    np.testing.assert_allclose(found.std, np.array([0.1, 0.2, 0.3]) / math.sqrt(2))


def test_a_run_that_ended_early_keeps_its_last_value_and_unknown_rounds_are_left_out() -> None:
    short, long = (
        make_record(OURS, 0, (0.4,), rounds=1),
        make_record(OURS, 1, (0.8,), rounds=4),
    )
    blind = changed(long.events[1], test=None)
    long = replace(long, events=(long.events[0], blind, *long.events[2:]))
    found = curve_of([short, long], mean_figure)
    assert found is not None
    assert found.rounds.tolist() == [1, 3, 4]
    np.testing.assert_allclose(found.mean, [0.3, 0.5, 0.6])
    np.testing.assert_allclose(found.seconds, [0.5, 1.0, 1.25])


def test_no_curve_where_nothing_is_known() -> None:
    assert curve_of([make_record(OURS, 0, reason="lost")], mean_figure) is None
    assert curve_of([make_record(OURS, 0, (0.5,), rho=math.nan)], lambda event: event.improved_ratio) is None
