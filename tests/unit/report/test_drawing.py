from __future__ import annotations

import re

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure

from dqnfed_flwr.report.drawing import COLOURS, STYLE, bin_edges, inline_svg, mark, shortened


@rc_context(STYLE)
def drawn(tip: str) -> Figure:
    figure = Figure(figsize=(2, 1))
    axes = figure.subplots()
    mark(axes.plot([0, 1, 2], [0, 4, 1], "o-", color=COLOURS[2]), 7, "c2", tip)
    axes.text(0, 0, "<i> & co")
    return figure


def test_shapes_of_a_row_have_its_number_its_colour_and_its_tip() -> None:
    svg = inline_svg(drawn('a <b> & "c"'), "key", "what <it> shows")
    assert '<g class="s c2" data-k="7"><title>a &lt;b&gt; &amp; &quot;c&quot;</title><path ' in svg
    assert svg.startswith('<svg viewBox="0 0 144 72" role="img" aria-label="what &lt;it&gt; shows">')
    assert ">&lt;i&gt; &amp; co</text>" in svg
    assert "stroke: var(--c2)" in svg
    assert re.findall("#[0-9a-f]{6}|DejaVu|url\\(|<style|<metadata", svg) == []


def test_the_same_chart_and_key_give_the_same_text_and_another_key_other_ids() -> None:
    one, again, other = (inline_svg(drawn("tip"), key, "") for key in ("one", "one", "other"))
    assert one == again
    found, others = (set(re.findall(r'\bid="([^"]*)"', svg)) for svg in (one, other))
    assert found
    assert not found & others


@pytest.mark.parametrize(("low", "high"), [(0, 100), (82.3, 97.5), (70, 70), (33.3, 33.4), (0, 0)])
def test_bins_are_few_round_and_hold_all_values(low: float, high: float) -> None:
    edges = bin_edges(np.array([low, high]))
    assert edges[0] <= low
    assert edges[-1] >= high
    assert 4 <= len(edges) <= 17
    assert np.diff(edges) == pytest.approx(edges[1] - edges[0])


def test_no_bin_lies_beyond_the_limits_of_the_values() -> None:
    assert bin_edges(np.array([100.0, 100.0]), limits=(0.0, 100.0))[-1] == 100
    assert bin_edges(np.array([0.0, 0.0]), limits=(0.0, 100.0))[0] == 0
    assert bin_edges(np.array([100.0, 100.0]))[-1] > 100


def test_names_that_differ_at_their_end_still_do_when_shortened() -> None:
    names = {shortened(f"FedAvg [local.momentum={value}]", 20) for value in (0.1, 0.3)}
    assert names == {"FedAvg [l…entum=0.1]", "FedAvg [l…entum=0.3]"}
    assert shortened("FedAvg", 20) == "FedAvg"
