"""Runs' files joined: one damaged file harms nobody, and old ones go."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from dqnfed_flwr.exporter.runs import RunFile, RunFiles, join, read_run
from tests.helpers.served import series, write_run


def joined(directory: Path, limit: int = 50) -> str:
    return join(RunFiles(directory, limit).current())


def names(directory: Path) -> set[str]:
    return {run.name for run in RunFiles(directory).current() if not run.fault}


def test_all_runs_are_joined_under_their_names(tmp_path: Path) -> None:
    write_run(tmp_path, "a", 2, status="finished")
    write_run(tmp_path, "b", 5)
    text = joined(tmp_path)
    found = series(text)
    assert found["dqnfed_round", frozenset({("run", "a")})] == 2
    assert found["dqnfed_round", frozenset({("run", "b")})] == 5
    assert found["dqnfed_run_state", frozenset({("run", "a"), ("state", "finished")})] == 1
    assert found["dqnfed_phase_seconds_bucket", frozenset({("run", "b"), ("phase", "solve"), ("le", "0.01")})] == 5
    heads = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")]
    assert len(heads) == len(set(heads))  # one family, one head


def test_a_name_with_quotes_stays_one_label(tmp_path: Path) -> None:
    write_run(tmp_path, 'a"b\\c')
    assert ("dqnfed_round", frozenset({("run", 'a"b\\c')})) in series(joined(tmp_path))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"# dqnfed-flwr metrics of run b\ndqnfed_round 1 2 3 4\n# EOF\n",
        b'# dqnfed-flwr metrics of run b\ndqnfed_round{run="a"} 1\n# EOF\n',
        b'# dqnfed-flwr metrics of run b\ndqnfed_round{x="a} 1\n# EOF\n',
        b"# dqnfed-flwr metrics of run b\nup 1\n# EOF\n",
        b"dqnfed_round 1\n# EOF\n",
        b"# dqnfed-flwr metrics of run b\ndqnfed_round one\n# EOF\n",
    ],
)
def test_a_damaged_file_harms_no_other_run(tmp_path: Path, content: bytes) -> None:
    write_run(tmp_path, "a")
    (tmp_path / "b.prom").write_bytes(content)
    runs = RunFiles(tmp_path).current()
    assert {run.name for run in runs if run.fault} == {"b"}
    assert {dict(labels)["run"] for _, labels in series(join(runs))} == {"a"}


def test_a_name_that_is_no_text_is_a_damaged_file(tmp_path: Path) -> None:
    content = write_run(tmp_path, "a").read_bytes()
    (tmp_path / os.fsdecode(b"b\xff.prom")).write_bytes(content)
    runs = RunFiles(tmp_path).current()
    assert {run.name: run.fault for run in runs} == {"a": "", "b\\xff": "its name is not UTF-8; rename or remove it"}
    assert {dict(labels)["run"] for _, labels in series(join(runs))} == {"a"}


def test_half_a_file_is_no_run_wherever_it_is_cut(tmp_path: Path) -> None:
    write_run(tmp_path, "a")
    whole = write_run(tmp_path, "b").read_bytes()
    for cut in range(0, len(whole) - 1, 997):
        (tmp_path / "b.prom").write_bytes(whole[:cut])
        assert names(tmp_path) == {"a"}


def test_what_is_no_file_harms_no_run(tmp_path: Path) -> None:
    write_run(tmp_path, "a")
    (tmp_path / "dir.prom").mkdir()
    os.mkfifo(tmp_path / "pipe.prom")
    (tmp_path / "gone.prom").symlink_to(tmp_path / "nowhere")
    (tmp_path / ".a.prom.tmp").write_bytes(b"half")
    assert names(tmp_path) == {"a"}


def test_a_file_is_read_again_only_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dqnfed_flwr.exporter import runs as runs_module

    read: list[str] = []

    def noted(path: Path, stamp: tuple[int, int, int]) -> RunFile:
        read.append(path.stem)
        return read_run(path, stamp)

    monkeypatch.setattr(runs_module, "read_run", noted)
    write_run(tmp_path, "a")
    write_run(tmp_path, "b")
    runs = RunFiles(tmp_path)
    runs.current()
    runs.current()
    assert sorted(read) == ["a", "b"]
    write_run(tmp_path, "b", 4)
    assert [run.figures["dqnfed_round"] for run in runs.current() if run.name == "b"] == [4]
    assert sorted(read) == ["a", "b", "b"]


def test_only_the_latest_runs_are_served(tmp_path: Path) -> None:
    for place, name in enumerate("abcd"):
        os.utime(write_run(tmp_path, name), (1000 + place, 1000 + place))
    runs = RunFiles(tmp_path, limit=2)
    assert [run.name for run in runs.current()] == ["d", "c"]
    assert runs.withheld == 2


def test_a_family_of_two_types_is_that_of_the_latest_run(tmp_path: Path) -> None:
    old, new = write_run(tmp_path, "old"), write_run(tmp_path, "new")
    old.write_text(old.read_text().replace("# TYPE dqnfed_rounds gauge", "# TYPE dqnfed_rounds untyped"))
    os.utime(old, (1000, 1000))
    os.utime(new, (2000, 2000))
    found = series(joined(tmp_path))
    assert ("dqnfed_rounds", frozenset({("run", "new")})) in found
    assert ("dqnfed_rounds", frozenset({("run", "old")})) not in found
    assert ("dqnfed_round", frozenset({("run", "old")})) in found


def test_old_files_of_ours_are_pruned_and_no_others(tmp_path: Path) -> None:
    for name in ("old", "new"):
        write_run(tmp_path, name, status="finished")
    (tmp_path / "foreign.prom").write_text("node_load1 3\n")
    (tmp_path / "notes.txt").write_text("mine")
    for name in ("old.prom", "foreign.prom", "notes.txt"):
        os.utime(tmp_path / name, (0, 0))
    runs = RunFiles(tmp_path)
    assert runs.prune(days=math.inf) == 0
    assert runs.prune(days=1) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"new.prom", "new.rounds.jsonl", "foreign.prom", "notes.txt"}
    assert runs.prune(days=1) == 0
