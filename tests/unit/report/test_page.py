from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from dqnfed_flwr.compare.tables import tables
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.report.document import Chapter, Document, Section
from dqnfed_flwr.report.page import html, write_report
from tests.helpers.comparisons import make_comparison
from tests.helpers.runs import leave_run, make_event

ONE = [make_event(1, (0.5, 0.7))]
"""A finished run of one round."""


@pytest.mark.parametrize("output", [".", "..", "/", "here"])
def test_a_page_that_is_a_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"--output: .* is a folder; name the page, such as .*report\.html"):
        write_report(tmp_path, Path(output))


@pytest.mark.parametrize("name", ["talk.md", "talk.MD"])
def test_a_page_in_the_place_of_its_markdown_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"where the Markdown goes; name the page, such as .*talk\.html"):
        write_report(tmp_path, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_markdown_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("# My notes\n\nHow it was run is told elsewhere.\n")
    with pytest.raises(ConfigError, match=r"would replace .*notes\.md, which is no report; name another"):
        write_report(tmp_path, tmp_path / "notes.html")


def test_a_run_that_is_not_at_its_end_is_named(tmp_path: Path) -> None:
    leave_run(tmp_path / "one", ONE)
    leave_run(tmp_path / "two", ONE)
    (tmp_path / "two" / "run.json").unlink()
    for path in write_report(tmp_path, None):
        assert "two: a run that is not at its end, and in no figure." in path.read_text()


def test_a_report_of_before_is_replaced(tmp_path: Path) -> None:
    run, page = tmp_path / "run", tmp_path / "talk.html"
    leave_run(run, ONE)
    write_report(run, page)
    markdown = page.with_suffix(".md")
    text = markdown.read_text()
    markdown.write_text(text + "more\n")
    write_report(run, page)
    assert markdown.read_text() == text


def test_a_report_that_was_cut_short_is_written_again(tmp_path: Path) -> None:
    leave_run(tmp_path, ONE)
    (tmp_path / "report.md").write_text("# DQN-")
    write_report(tmp_path, None)
    assert "How it was run" in (tmp_path / "report.md").read_text()


METHODS = {"dqn-fed": [(0.9, 0.95)] * 2, "fedavg": [(0.8, 0.9), (0.7, 0.9)], "mgda": [(0.4, 0.5)] * 2}


def page_about(*titles: str) -> str:
    """The page of comparisons of three methods, one section a title."""
    made = make_comparison(METHODS)
    sections = [
        Section(f"s{place}", title, "", made, tables(made)[:2], {"command": "dqnfed compare <digits>"})
        for place, title in enumerate(titles)
    ]
    return html(Document("A & B <both>", [Chapter("One", "nobody & <co>", sections)]))


def test_texts_are_escaped() -> None:
    page = page_about("Five <clients>")
    for text in (
        "A &amp; B &lt;both&gt;",
        "nobody &amp; &lt;co&gt;",
        "Five &lt;clients&gt;",
        "dqnfed compare &lt;digits&gt;",
    ):
        assert text in page
    assert "<clients>" not in page


def test_every_chart_of_a_section_has_the_shapes_of_each_row_and_says_what_they_are() -> None:
    page = page_about("first")
    charts = re.findall(r'<svg viewBox="0 0 (?:560|220).*?</svg>', page, re.DOTALL)
    labels = [unescape(label) for chart in charts for label in re.findall('aria-label="(.*?)"', chart)]
    assert labels[:4] == [
        "test accuracy, % against round",
        "test accuracy, % against seconds since the beginning",
        "ρ against round",
        "worst 10 % of the clients against their mean",
    ]
    assert labels[4:] == [
        f"clients of {name} by accuracy; mean {mean} %"
        for name, mean in (("DQN-Fed", "92.5"), ("FedAvg", "82.5"), ("MGDA", "45.0"))
    ]
    for chart in charts[:4]:
        assert set(re.findall(r'data-k="(\d+)"', chart)) == {"0", "1", "2"}
    assert "<title>FedAvg: 82.50 at the end</title>" in charts[0]
    assert "<title>FedAvg: mean 82.5 %, worst 10 % 75.0 %</title>" in charts[3]
    for key, chart in enumerate(charts[4:]):
        assert set(re.findall(r'data-k="(\d+)"', chart)) == {str(key)}
    assert re.findall(r'<button data-k="(\d+)" aria-pressed="false" class="strong">', page) == ["0", "1", "2"]


def test_a_page_of_two_sections_names_nothing_twice_and_loads_nothing() -> None:
    page = page_about("first", "second")
    names = Counter(re.findall(r'\bid="([^"]*)"', page))
    assert [name for name, count in names.items() if count > 1] == []
    assert set(re.findall(r'href="#([^"]*)"', page)) <= set(names)
    assert re.search(r"https?://|@import|url\(", page) is None


def test_the_theme_decides_every_colour_of_a_chart() -> None:
    page = page_about("first")
    assert re.findall("#[0-9a-f]{6}", "".join(re.findall("<svg.*?</svg>", page, re.DOTALL))) == []
    assert "--c0: light-dark(#0072b2, #58b0f5)" in page


def test_the_same_runs_give_the_same_page() -> None:
    assert page_about("first") == page_about("first")


def test_figures_are_those_of_the_table() -> None:
    page = page_about("first")
    assert '<td><span>82.50</span><small><span class="pm">±</span>3.54</small></td>' in page.replace(
        ' class="second"', ""
    )


def test_a_chart_without_figures_is_left_out() -> None:
    made = make_comparison({"fedavg": [(0.5, 0.7)]})
    (row,) = made.rows
    (record,) = row.records
    unknown = tuple(replace(event, losses_after=[math.nan] * 4) for event in record.events)
    made = replace(made, rows=(replace(row, records=(replace(record, events=unknown),)),))
    page = html(Document("t", [Chapter("t", "", [Section("s", "t", "", made, tables(made)[:2], {})])]))
    assert "Accuracy by rounds" in page
    assert "Nobody pays" not in page
