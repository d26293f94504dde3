"""`dqnfed audit`: of a run whose data are here, of a client on its node, from lines, and verification."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.audit import carry_out
from dqnfed_flwr.audit.local_models import train_local
from dqnfed_flwr.deploy import pki
from tests.helpers.audits import leave_run, spoil
from tests.helpers.cli import call


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of the same data."""
    folder = tmp_path_factory.mktemp("runs")
    leave_run(folder / "fedavg")
    leave_run(folder / "propfair", method="propfair")
    return folder


@pytest.fixture
def mine(runs: Path, tmp_path: Path) -> Path:
    """A copy of the first run."""
    return shutil.copytree(runs / "fedavg", tmp_path / "mine")


def verdict(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "audit" / "audit.json").read_text())
    return found


def test_a_run_that_harms_nobody_ends_with_0(mine: Path, runs: Path) -> None:
    found = call("audit", str(mine), "--against", str(runs / "propfair"))
    assert found.exit_code == 0, found.output
    for title in ("local only", "the start", "PropFair"):
        assert f"The federated model against {title}" in found.output
    assert found.output.count("3 clients could be judged") == 3
    record = verdict(mine)
    assert record["worse"] == {}
    assert [comparison["against"] for comparison in record["comparisons"]] == ["local", "start", "PropFair"]
    assert sorted(path.name for path in (mine / "audit" / "local").glob("*.npz")) == [
        f"client-{k}.npz" for k in range(3)
    ]
    assert "Against local only" in (mine / "audit" / "audit.html").read_text()


def test_a_run_that_harms_ends_with_3_and_names_the_clients(mine: Path) -> None:
    spoil(mine)
    found = call("audit", str(mine))
    assert found.exit_code == 3, found.output
    assert "worse off than with start: clients 0, 1, 2" in found.output
    assert verdict(mine)["worse"]["start"] == [0, 1, 2]


def test_models_are_trained_once_and_again_where_the_run_is_another(
    mine: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[int] = []

    def counting(run: Any, partition: int, *rest: Any) -> Any:
        trained.append(partition)
        if len(trained) == 2:
            raise KeyboardInterrupt
        return train_local(run, partition, *rest)

    monkeypatch.setattr(carry_out, "train_local", counting)
    assert call("audit", str(mine)).exit_code == 130
    assert call("audit", str(mine)).exit_code == 0
    assert trained == [0, 1, 1, 2]
    assert call("audit", str(mine)).exit_code == 0
    assert trained == [0, 1, 1, 2]
    shutil.copytree(mine / "audit", mine.parent / "kept")
    shutil.rmtree(mine)
    leave_run(mine, **{"local.lr": 0.2})
    shutil.copytree(mine.parent / "kept", mine / "audit")
    assert call("audit", str(mine)).exit_code == 0
    assert trained[4:] == [0, 1, 2]


def test_models_of_a_run_of_local_are_taken(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_run(tmp_path / "local", method="local", **{"local.lr": 0.3})
    monkeypatch.setattr(carry_out, "train_local", pytest.fail)
    found = call("audit", str(mine), "--local", str(tmp_path / "local"))
    assert found.exit_code == 3, found.output
    assert 2 in verdict(mine)["worse"]["local"]  # the shared model has 27 % of its samples right, its own one 91 %
    assert "local-only models of other settings (wanted, found): local.lr: 0.1, 0.3" in found.output


def test_clients_that_a_given_folder_lacks_are_named(mine: Path, tmp_path: Path) -> None:
    assert call("audit", str(mine)).exit_code == 0
    given = shutil.copytree(mine / "audit" / "local", tmp_path / "given")
    (given / "client-1.npz").unlink()
    found = call("audit", str(mine), "--local", str(given))
    assert found.exit_code == 0
    assert "clients 1 have no model in --local" in found.output


def node_files(folder: Path, k: int) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    private, public = pki.make_node_key(f"node-{k}")
    (folder / f"{k}.key").write_bytes(private)
    (folder / f"{k}.pub").write_bytes(public)
    return folder / f"{k}.key", folder / f"{k}.pub"


def test_lines_of_nodes_give_the_verdict_that_the_data_give(mine: Path, runs: Path, tmp_path: Path) -> None:
    keys, lines, against = tmp_path / "keys", tmp_path / "lines", ["--against", str(runs / "propfair")]
    lines.mkdir()
    for k in range(3):
        node = tmp_path / f"node-{k}"
        node.mkdir()
        for name in ("run.json", "model.npz"):  # all that a node is given
            shutil.copy(mine / name, node)
        private, _ = node_files(keys, k)
        to = ["--sign", str(private), "--output", str(lines / f"{k}.jsonl")]
        found = call("audit", str(node), "--client", "--partition", str(k), *to, *against)
        assert found.exit_code == 0, found.output
    found = call("audit", str(mine), "--verify", str(lines), "--keys", str(keys))
    assert (found.exit_code, found.output) == (0, "3 lines, each signed by a key of its own, of one model\n")
    assert call("audit", str(mine), "--records", str(lines)).exit_code == 0
    from_lines = verdict(mine)
    assert call("audit", str(mine), *against).exit_code == 0
    from_data = verdict(mine)
    assert sorted(map(json.dumps, from_lines["comparisons"])) == sorted(map(json.dumps, from_data["comparisons"]))

    (lines / "1.jsonl").write_text((lines / "1.jsonl").read_text().replace('"partition":1', '"partition":2'))
    found = call("audit", "--verify", str(lines), "--keys", str(keys))
    assert found.exit_code == 3
    assert "1.jsonl:1: client 2: changed after it was signed with" in found.output
    (lines / "1.jsonl").unlink()
    found = call("audit", str(mine), "--records", str(lines))
    assert found.exit_code == 0
    assert "client 1, not judged: no line that can be used" in found.output
    assert "2 of 3 clients could be judged" in found.output


def test_harm_is_found_from_lines_alone(mine: Path, tmp_path: Path) -> None:
    spoil(mine)
    files = []
    for k in range(3):
        found = call("audit", str(mine), "--client", "--partition", str(k))
        assert found.exit_code == 0, found.output
        files.append(tmp_path / f"{k}.jsonl")
        files[-1].write_text(found.stdout)
    found = call("audit", str(mine), *(word for file in files for word in ("--records", str(file))))
    assert found.exit_code == 3
    assert "worse off than with start: clients 0, 1, 2" in found.output


def test_a_node_reads_its_own_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for k in range(2):
        y = np.arange(60) % 3
        x = (rng.normal(size=(60, 4)) + y[:, None]).astype(np.float32)
        np.savez(tmp_path / f"{k}.npz", x_train=x, y_train=y, num_classes=3)
    changes = {"data": str(tmp_path / "0.npz"), "partition": "file", "clients": 2, "split.samples": 0}
    run = leave_run(tmp_path / "run", **changes)
    words = ["audit", str(run), "--client", "--partition", "1"]
    own = call(*words, "--data", str(tmp_path / "1.npz"))
    assert own.exit_code == 0, own.output
    servers = call(*words)
    assert json.loads(own.stdout)["models"] != json.loads(servers.stdout)["models"]
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "fingerprint": None}))  # as a run of nodes leaves it
    found = call("audit", str(run))
    assert found.exit_code == 2
    assert "audit each with --client there" in found.output


def test_data_that_are_not_those_of_the_run_are_refused(tmp_path: Path) -> None:
    y = np.arange(90) % 3
    x = np.random.default_rng(0).normal(size=(90, 4)).astype(np.float32)
    np.savez(tmp_path / "set.npz", x_train=x, y_train=y)
    run = leave_run(tmp_path / "run", data=str(tmp_path / "set.npz"), partition="iid", **{"split.samples": 0})
    np.savez(tmp_path / "set.npz", x_train=x + 1, y_train=y)
    found = call("audit", str(run))
    assert found.exit_code == 2
    assert "is not what the run was trained on" in found.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "RUN: give the output folder"),
        (["RUN", "--client"], "--client: give --partition"),
        (["RUN", "--partition", "1"], "--partition: of no use by itself"),
        (["RUN", "--client", "--records", "x"], "--client and --records do not go together"),
        (["RUN", "--records", "x", "--against", "RUN"], "--against: of no use with --records"),
        (["RUN", "--verify", "x"], "--verify: give --keys"),
        (["RUN", "--keys", "x"], "--keys: of no use by itself"),
        (["RUN", "--records", "absent"], "absent: cannot be read"),
        (["RUN", "--local", "absent"], "holds no local-only models"),
        (["RUN", "--against", "absent"], "absent: no result of a finished run"),
        (["RUN", "--client", "--partition", "7"], "clients = 3 allows 0..2"),
        (["RUN", "--client", "--partition", "1", "--sign", "absent"], "--sign: absent: cannot be read"),
        (["absent"], "no result of a finished run"),
    ],
)
def test_what_is_wrong_is_told_with_status_2(mine: Path, words: list[str], said: str) -> None:
    found = call("audit", *(str(mine) if word == "RUN" else word for word in words))
    assert found.exit_code == 2, found.output
    assert said in found.output
