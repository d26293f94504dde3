"""What a SuperLink says, and what is made of silence, errors and nonsense."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from dqnfed_flwr.exporter.exporter import Exporter, ExporterOptions
from dqnfed_flwr.exporter.poll import Poll
from tests.helpers.served import NODES, RUNS, Series, polling, series


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """A command that answers as `flwr` would; a test replaces what it says."""
    path = tmp_path / "flwr"
    path.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, sys\n"
        "word = 'nodes' if 'supernode' in sys.argv else 'runs'\n"
        "print(pathlib.Path(__file__).with_name(word + '.txt').read_text())\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "nodes.txt").write_text("📄 Listing all nodes...\n" + json.dumps(NODES, indent=2))
    (tmp_path / "runs.txt").write_text(json.dumps(RUNS))
    return path


def exported(tmp_path: Path, poll: Poll, **options: int) -> Series:
    exporter = Exporter(ExporterOptions(tmp_path, **options), poll)  # type: ignore[arg-type]
    exporter.look()
    return series(exporter.exposition().decode())


def test_nodes_and_runs_are_counted_by_state(tmp_path: Path, command: Path) -> None:
    found = exported(tmp_path, polling(command))
    nodes = {dict(labels)["state"]: value for (name, labels), value in found.items() if name == "dqnfed_nodes"}
    assert nodes == {"online": 1, "offline": 1, "registered": 1, "other": 1}
    runs = {dict(labels)["state"]: value for (name, labels), value in found.items() if name == "dqnfed_flower_runs"}
    assert {state for state, count in runs.items() if count} == {"running", "failed", "completed"}
    assert found["dqnfed_superlink_up", frozenset()] == 1
    assert not [name for name, _ in found if name == "dqnfed_node_online"]


def test_nodes_have_their_names_where_they_are_known(tmp_path: Path, command: Path) -> None:
    names = {"12": "ward-a"}
    poll = polling(command, lambda: names)
    found = exported(tmp_path, poll, node_series=2)
    online = {
        (dict(labels)["node"], dict(labels)["name"]) for (name, labels), _ in found.items() if "node_online" in name
    }
    assert online == {("11", ""), ("12", "ward-a")}
    names["11"] = "ward-b"  # registered meanwhile
    assert {node.id: node.name for node in poll.poll().nodes} == {"11": "ward-b", "12": "ward-a", "13": "", "15": ""}


def test_nodes_have_series_only_when_asked_for_and_not_more(tmp_path: Path, command: Path) -> None:
    found = exported(tmp_path, polling(command), node_series=2)
    online = {dict(labels)["node"]: value for (name, labels), value in found.items() if name == "dqnfed_node_online"}
    assert online == {"11": 1, "12": 0}


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "nonsense",
        '{"success": false, "error-message": "connection refused"}',
        '{"success": true}',
        '{"success": true, "nodes": [{}]}',
        '{"success": true, "nodes": [3]}',
        '{"success": true, "nodes": 3}',
        "[]",
    ],
)
def test_a_failed_poll_is_counted_and_old_states_are_withdrawn(tmp_path: Path, command: Path, answer: str) -> None:
    poll = polling(command)
    exporter = Exporter(ExporterOptions(tmp_path), poll)
    exporter.look()
    (tmp_path / "nodes.txt").write_text(answer)
    exporter.look()
    found = series(exporter.exposition().decode())
    assert found["dqnfed_superlink_up", frozenset()] == 0
    assert found["dqnfed_superlink_polls_total", frozenset({("result", "failed")})] == 1
    assert found["dqnfed_superlink_polls_total", frozenset({("result", "ok")})] == 1
    assert not [name for name, _ in found if name in ("dqnfed_nodes", "dqnfed_flower_runs")]
    assert poll.state.error


def test_a_superlink_that_goes_away_twice_is_told_twice(
    tmp_path: Path, command: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = Exporter(ExporterOptions(tmp_path), polling(command))
    away, well = '{"success": false, "error-message": "gone"}', json.dumps(NODES)
    for answer in (away, away, well, away):
        (tmp_path / "nodes.txt").write_text(answer)
        exporter.look()
    assert [record.getMessage() for record in caplog.records] == ["superlink: flwr supernode list there: gone"] * 2


def test_the_reason_of_a_failure_is_kept(tmp_path: Path, command: Path) -> None:
    (tmp_path / "nodes.txt").write_text('{"success": false, "error-message": "connection refused"}')
    assert "connection refused" in polling(command).poll().error


def test_a_missing_command_is_a_failed_poll(tmp_path: Path) -> None:
    assert not polling(tmp_path / "nothing").poll().up
