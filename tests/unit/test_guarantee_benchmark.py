"""The benchmark of the guarantee, in a few rounds."""

from __future__ import annotations

import csv
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from benchmarks import guarantee
from benchmarks._guarantee_page import page
from benchmarks._guarantee_runs import ABSENT, NONE, unlike, with_liars
from benchmarks._lies import LIES
from benchmarks._unlike import UNLIKE


@pytest.mark.parametrize("lie", [NONE, ABSENT, *LIES])
def test_every_lie_is_told_and_outlived(lie: str) -> None:
    found = with_liars("1 of 4", lie, 0, {"guarantee.tolerate": 1, "rounds": 3})
    assert not found.ended
    assert found.rounds == 3
    assert found.left_out == 0
    assert 0 <= found.worst <= found.mean <= 100


def test_lies_against_the_own_losses_are_named() -> None:
    assert with_liars("1 of 4", "honest row, no", 0, {"guarantee.tolerate": 1, "rounds": 3}).named in (1, 2, 3)
    assert with_liars("1 of 4", NONE, 0, {"guarantee.tolerate": 1, "rounds": 3}).named == 0


@pytest.mark.parametrize("case", UNLIKE)
def test_the_other_client_begins_far_off_and_nobody_is_harmed(case: str) -> None:
    found = unlike(case, 0, {"rounds": 3, "start.epochs": 20})
    assert found.harmed == 0
    assert found.unharmed == 1
    assert found.other_loss > 1


def test_runs_that_a_file_holds_are_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarantee, "ProcessPoolExecutor", lambda workers, mp_context: ThreadPoolExecutor(workers))

    def job(lie: str) -> guarantee.Job:
        names = {"setup": "1 of 4", "lie": lie, "side": "tolerated", "seed": 0}
        return names, partial(with_liars, "1 of 4", lie, 0, {"guarantee.tolerate": 1, "rounds": 2})

    path = tmp_path / "lies.csv"
    guarantee.make(path, [job(NONE)], 1)
    first = path.read_text()
    guarantee.make(path, [job(NONE), job(ABSENT)], 1)
    assert path.read_text().startswith(first)
    assert [row["lie"] for row in csv.DictReader(path.read_text().splitlines())] == [NONE, ABSENT]


def test_the_page_marks_what_misses_a_bar(tmp_path: Path) -> None:
    head = "setup,lie,side,seed,ended,mean,worst,named,overruled\n"
    rows = [
        "1 of 4,none,tolerated,0,,96,92,0,0",
        "1 of 4,absent,tolerated,0,,95,90,0,0",
        "1 of 4,noise,tolerated,0,,92,89,3,1",
        "1 of 4,stale row,tolerated,0,pareto-stationary,95,84,0,0",
    ]
    (tmp_path / "lies.csv").write_text(head + "\n".join(rows) + "\n")
    text = page(tmp_path, None)
    assert "| none | +1.0 | +2.0 | – | 0 | no |" in text
    assert "| noise | **-3.0** | -1.0 | 3 | 1 | no |" in text
    assert "| stale row | +0.0 | **-6.0** | – | 0 | **1 of 1 (pareto-stationary)** |" in text
    assert "Within the bars: 1 of 3." in text
