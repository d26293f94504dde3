from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.report.drawing import COLOURS, MUTE
from dqnfed_flwr.report.labels import bright_names, look_of, spread
from tests.helpers.comparisons import make_comparison


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


def test_the_reference_fedavg_and_the_best_stand_out() -> None:
    names = ["mgda", "dqn-fed", "fedavg", "fedsgd", "afl", "term", "median", "krum"]
    many = make_comparison({name: [(0.5 + place / 100,) * 4] for place, name in enumerate(names)})
    look = look_of(many, bright_names([many]))
    bright = {names[place]: style.colour for place, style in look.items() if style.bright}
    assert bright == dict(zip(["dqn-fed", "fedavg", "krum", "median", "term", "afl"], COLOURS, strict=True))
    assert look[0].colour == look[3].colour == MUTE
    lost = make_comparison({"fedavg": [(0.5, 0.6)], "mgda": [(0.5, 0.6)]}, failed={"krum": "lost"})
    assert [style.colour for style in look_of(lost, bright_names([lost])).values()] == list(COLOURS[:2])
