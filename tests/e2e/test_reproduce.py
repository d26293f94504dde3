"""`dqnfed reproduce` and `dqnfed report` from a manifest to the page."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dqnfed_flwr import run
from dqnfed_flwr.cli.app import app
from dqnfed_flwr.compare import workers
from dqnfed_flwr.compare.plan import Job
from dqnfed_flwr.compare.workers import Watcher
from dqnfed_flwr.engine.run import Engine
from dqnfed_flwr.errors import DataError

TINY = """
title: Two methods <on digits>
source: nobody
seeds: [0, 1]
open: [everything]
chosen: [little]
parts:
  small:
    title: Five clients
    columns: [mean, std, worst10]
    settings: {data: digits, clients: 5, model: logistic, rounds: 4, local: {threads: 1}}
    rows:
      - {paper: Ours, method: dqn-fed, figures: {mean: 95.53, std: 2.51}}
      - {paper: Theirs, method: fedavg, figures: {mean: 91.27}, grid: {local.lr: [0.1, 0.5]}}
    reduced: {settings: {rounds: 2}, seeds: [0, 1]}
  never:
    title: Hostile clients
    settings: {data: digits}
    rows: [{method: dqn-fed}]
    runs: false
    needs: [clients that lie]
    reduced: {}
"""
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Checks that every element is closed in its turn, and collects what a browser would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href", "data", "srcset")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def carry_out_here(jobs: Sequence[Job], processes: int, engine: Engine, watcher: Watcher) -> dict[Path, str]:
    del processes, watcher
    failed = {}
    for job in jobs:
        try:
            run(job.settings, engine=engine)
        except DataError as error:
            failed[job.folder] = str(error)
    return failed


@pytest.fixture
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(workers, "carry_out", carry_out_here)
    path = tmp_path / "mine.yaml"
    path.write_text(TINY, "utf-8")
    return str(path)


def called(*words: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == status, result.output
    return result.output


def page_of(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text("utf-8"))
    assert page.open == []
    return page


def figures_in(directory: Path) -> list[object]:
    found = json.loads((directory / "small" / "comparison.json").read_text())
    timed = ("seconds", "seconds_per_round")
    return [
        (row["label"], run["accuracies"], {key: value for key, value in run["figures"].items() if key not in timed})
        for row in found["methods"]
        for run in row["runs"]
    ]


def test_a_table_from_manifest_to_page_twice_with_the_same_figures(manifest: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    shown = called("reproduce", manifest, "--reduced", "--output", str(one))
    for word in (
        "never cannot be run here, for it needs: clients that lie",
        "95.53",
        "91.27",
        "reduced: rounds 2 of 4",
    ):
        assert word in shown
    called("reproduce", manifest, "--reduced", "--output", str(two))
    assert figures_in(one) == figures_in(two)
    again = called("reproduce", manifest, "--reduced", "--output", str(one))
    assert "4 of 4 runs are there already" in again

    page = page_of(one / "report.html")
    text = " ".join(" ".join(page.text).split())
    assert [address for address in page.loaded if address != "data:,"] == []
    assert re.search(r"https?://|@import|url\(", (one / "report.html").read_text()) is None
    markdown = (one / "report.md").read_text()
    for row in json.loads((one / "small" / "comparison.json").read_text())["methods"]:
        for key in ("mean", "std", "worst10"):
            mean, spread = (f"{100 * row['figures'][key][part]:.2f}" for part in ("mean", "std"))
            assert f"{mean} ± {spread}" in text
            assert f"{mean} ± {spread}" in markdown
    for word in (
        "95.53",
        "91.27",
        "Two methods <on digits>",
        "Reduced: rounds 2 of 4",
        "borne out",
        "clients that lie",
    ):
        assert word in text
        assert word.replace("_", "\\_") in markdown
    assert "dqnfed reproduce" in markdown


def test_a_figure_in_the_folder_of_its_table_leaves_the_table(manifest: str, tmp_path: Path) -> None:
    figure, folder = tmp_path / "curves.yaml", tmp_path / "both"
    text = TINY.replace("Two methods <on digits>", "Their curves").replace("mean, std, worst10", "mean, rho")
    figure.write_text(text[: text.index("  never:")], "utf-8")
    called("reproduce", manifest, "--reduced", "--output", str(folder))
    written = (folder / "report.md").read_text("utf-8")
    table = written[written.index("## Five clients") : written.index("### How it was run")]
    called("reproduce", str(figure), "--reduced", "--output", str(folder))
    written = (folder / "report.md").read_text("utf-8")
    assert written.startswith("# both: mine.yaml, curves.yaml\n\n## Two methods <on digits>\n\nnobody\n\n### Five")
    assert re.sub("(?m)^#", "##", table) in written
    assert "clients that lie" in written
    curves = written[written.index("\n## Their curves\n") :]
    assert "| method | mean | paper | ρ mean |" in curves
    commands = re.findall(r"- command: dqnfed reproduce (\S+)", written)
    assert [Path(word).name for word in commands] == ["mine.yaml", "curves.yaml"]
    page = (folder / "report.html").read_text("utf-8")
    assert re.findall(r'<section class="part" id="([^"]*)"', page) == ["mine.yaml-small", "curves.yaml-small"]
    page_of(folder / "report.html")
    called("report", str(folder))
    assert (folder / "report.md").read_text("utf-8") == written


def test_what_would_run_is_said_without_running(manifest: str, tmp_path: Path) -> None:
    shown = called("reproduce", manifest, "--dry-run", "--rounds", "3", "--output", str(tmp_path / "none"))
    assert "4 final and 2 of the search" in shown
    assert "reduced: rounds 3 of 4" in shown
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "seed=7"], "--set seed: name seeds by --seeds"),
        (["--rounds", "3", "--set", "rounds=5"], "--rounds and --set rounds: give one of the two"),
    ],
)
def test_options_that_contradict_the_command_are_refused(manifest: str, options: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["reproduce", manifest, "--dry-run", *options])
    assert (result.exit_code, said in result.stderr) == (2, True)


def test_a_part_without_its_data_leaves_the_others_their_runs(
    manifest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = """  lost:
    title: Without its files
    settings: {data: femnist, clients: 3, model: logistic, rounds: 1}
    rows: [{method: fedavg}]
    reduced: {}
"""
    monkeypatch.setenv("DQNFED_DATA", str(tmp_path / "data"))
    Path(manifest).write_text(TINY.replace("parts:\n", f"parts:\n{lost}"), "utf-8")
    shown = called("reproduce", manifest, "--reduced", "--jobs", "1", "--output", str(tmp_path / "out"), status=1)
    assert "lost: every run failed; the reasons are below the table" in shown
    written = (tmp_path / "out" / "report.md").read_text("utf-8")
    assert "femnist is not in" in written
    assert "| DQN-Fed | " in written


def test_a_single_run_and_a_comparison_have_a_page_too(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run({"data": "digits", "clients": 3, "model": "logistic", "rounds": 2, "output": str(folder)})
    called("report", str(folder), "--output", str(tmp_path / "talk.html"))
    assert "DQN-Fed" in " ".join(page_of(tmp_path / "talk.html").text)
    assert (tmp_path / "talk.md").exists()


def test_misuse_is_named(manifest: str, tmp_path: Path) -> None:
    assert "name a table or figure" in called("reproduce", status=2)
    assert "no reproduction.json, comparison.json or run.json" in called("report", str(tmp_path), status=2)
    assert "allowed: small, never" in called("reproduce", manifest, "--part", "big", status=2)
    assert "nothing here can be run" in called("reproduce", manifest, "--part", "never", status=2)
    listed = called("reproduce", "--list")
    for word in ("table1", "fedmdfg-table4", "Clothing1M", "attacks"):
        assert word in listed
