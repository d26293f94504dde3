"""Published figures that cannot hold beside each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dqnfed_flwr.fairness import fairness_report
from dqnfed_flwr.reproduce.manifests import load_manifest
from dqnfed_flwr.reproduce.published import impossible, published_doubts, published_figures
from dqnfed_flwr.types import Float64Array


def test_spreads_that_the_tails_forbid_are_found() -> None:
    # 100 clients, 5 at 0 and 5 at 100, the others at 50: variance 0.1 x 2500, so 15.81
    tails = {"mean": 50.0, "worst5": 0.0, "best5": 100.0}
    assert "alone force 15.8" in impossible({**tails, "std": 15.7}, 100)["low"]
    assert impossible({**tails, "std": 15.82}, 100) == {}
    assert impossible({"mean": 50.0, "std": 0.0}, 100) == {}
    # 3 clients, a tail is one client: 0, 50 and 100 have variance 5000 / 3
    assert "alone force 40.8" in impossible({"mean": 50.0, "std": 40.0, "worst10": 0.0, "best10": 100.0}, 3)["low"]


def test_spreads_that_the_tails_do_not_reach_are_found() -> None:
    # 10 clients: 0.1 x (40 x 10 + 40 x 10) + 0.8 x 10 x 10 within, 0.1 x (100 + 100) between the groups: 180 in all
    tails = {"mean": 50.0, "worst10": 40.0, "best10": 60.0}
    assert "which allow 13.4 at most" in impossible({**tails, "std": 14.0}, 10)["high"]
    assert impossible({**tails, "std": 13.9}, 10) == {}


def test_means_that_the_tails_forbid_are_found() -> None:
    # the other eight would average (500 - 52 - 70) / 8 = 47.25, less than the worst
    found = impossible({"mean": 50.0, "std": 5.0, "worst10": 52.0, "best10": 70.0}, 10)
    assert list(found) == ["mean"]
    assert "the others would average 47.25" in found["mean"]


def test_angles_are_those_of_mean_and_spread() -> None:
    # tan 45 degrees = 1; Table 5, skewed: 13.91 / 93.80 is the tangent of 8.44 degrees
    assert impossible({"mean": 30.0, "std": 30.0, "angle_deg": 45.0, "angle_rad": 0.785}, 10) == {}
    found = impossible({"mean": 93.80, "std": 13.91, "angle_deg": 11.41}, 100)
    assert "an angle of 11.41°" in found["angle"]
    assert "its tangent: 8.44°" in found["angle"]
    assert "0.199 rad" in impossible({"mean": 93.80, "std": 13.91, "angle_rad": 0.199}, 100)["angle"]
    assert impossible({"mean": 93.80, "std": 13.91, "angle_deg": 8.9}, 100) == {}


def test_means_that_are_not_those_of_all_clients_are_found() -> None:
    three = {"std": 3.0, "tshirt": 90.0, "pullover": 80.0, "shirt": 70.0}
    assert impossible({**three, "mean": 80.04}, 3) == {}
    assert impossible({**three, "mean": 79.9}, 3)["clients"] == (
        "mean 79.90 cannot be that of 90.00, 80.00, 70.00, which is 80.00"
    )
    assert impossible({**three, "mean": 60.0}, 10) == {}
    (told,) = published_doubts(load_manifest("table9").parts["fashion-mnist"])
    assert "DQN-Fed: mean 81.27 cannot be that of 90.99, 88.21, 72.57, which is 83.92." in told


def test_the_contradictions_of_a_table_are_told_once_a_kind() -> None:
    figures = published_figures(load_manifest("table5").parts["original"])
    assert all("angle" in impossible(row, 500) for row in figures.values())
    (told,) = published_doubts(load_manifest("table5").parts["skewed"])
    assert told.count("°") == 2
    assert "the same of 6 more rows" in told
    (both,) = published_doubts(load_manifest("table6").parts["setup1"])
    assert "at most; the same of 2 more rows." in both
    assert "FedMGDA+: mean 53.08 cannot hold" in both
    assert published_doubts(load_manifest("table11").parts["tiny-imagenet"]) == []


@given(arrays.arrays(np.float64, st.integers(3, 60), elements=st.floats(0.01, 1.0)))
def test_figures_of_real_clients_contradict_nothing(accuracies: Float64Array) -> None:
    report = fairness_report(dict(enumerate(accuracies.tolist())))
    angles = ("angle_deg", "angle_rad")
    figures = {key: value if key in angles else 100 * value for key, value in report.items()}
    assert impossible(figures, len(accuracies)) == {}
    assert math.tan(report["angle_rad"]) == pytest.approx(report["std"] / report["mean"], abs=1e-6)


@given(
    arrays.arrays(np.float64, (5, 20), elements=st.floats(-4.0, 4.0)),
    arrays.arrays(np.float64, 20, elements=st.floats(0.2, 0.8)),
)
def test_averages_over_seeds_contradict_nothing(noise: Float64Array, accuracies: Float64Array) -> None:
    reports = [fairness_report(dict(enumerate((accuracies + seed / 100).tolist()))) for seed in noise]
    keys = ("mean", "std", "worst10", "best10")
    figures = {key: 100 * float(np.mean([report[key] for report in reports])) for key in keys}
    figures["angle_deg"] = float(np.mean([report["angle_deg"] for report in reports]))
    assert impossible(figures, 20) == {}
