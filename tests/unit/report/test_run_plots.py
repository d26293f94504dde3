from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from dqnfed_flwr.errors import RunError
from dqnfed_flwr.report import run_plots
from dqnfed_flwr.report.drawing import COLOURS
from dqnfed_flwr.report.run_plots import plot_runs
from tests.helpers.runs import make_event, make_result


def shows(image: Path, colour: str) -> bool:
    wanted = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)])
    pixels = np.asarray(Image.open(image).convert("RGB")).astype(int)
    return bool((np.abs(pixels - wanted).max(axis=2) < 3).any())


def test_plot_shows_every_run(tmp_path: Path) -> None:
    ours = make_result([make_event(t, (0.1 * t, 0.12 * t)) for t in range(1, 6)])
    theirs = make_result([make_event(t, None, rho=0.5) for t in range(1, 6)], (0.2, 0.3, 0.4, 0.5))
    one = plot_runs({"DQN-Fed": ours}, tmp_path / "one.png")
    two = plot_runs({"DQN-Fed": ours, "FedAvg": theirs}, tmp_path / "two.png")
    assert [shows(one, colour) for colour in COLOURS[:3]] == [True, False, False]
    assert [shows(two, colour) for colour in COLOURS[:3]] == [True, True, False]


def test_plot_of_long_unknown_and_even_runs(tmp_path: Path) -> None:
    long = make_result([make_event(t, (0.5,), rho=(t % 5) / 4) for t in range(1, 301)], (0.7, 0.7))
    unknown = make_result([make_event(1, None, rho=math.nan)], (0.7,))
    assert plot_runs({"long": long, "unknown": unknown}, tmp_path / "plot.png").stat().st_size > 10_000


def test_a_plot_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    result = {"DQN-Fed": make_result([make_event(1, (0.5,))])}
    with pytest.raises(RunError, match="cannot be written"):
        plot_runs(result, tmp_path / "none" / "plot.png")


@pytest.mark.parametrize("rounds", [1, 3, 7])
def test_rounds_are_whole_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(run_plots, "save", lambda figure, path: drawn.append(figure))
    plot_runs({"run": make_result([make_event(t, (0.5, 0.6)) for t in range(1, rounds + 1)])}, tmp_path / "plot.png")
    accuracy, rho, _ = drawn[0].axes
    assert [tick for axes in (accuracy, rho) for tick in axes.get_xticks() if tick != round(tick)] == []
