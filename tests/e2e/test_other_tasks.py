"""Tasks other than classification on real data, from the command line: an error, a share that some clients lack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import Result
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.preprocessing import scale
from typer.testing import CliRunner

from dqnfed_flwr import run
from dqnfed_flwr.cli.app import app
from dqnfed_flwr.engine.result import read_result
from dqnfed_flwr.exporter.exporter import Exporter, ExporterOptions
from dqnfed_flwr.types import Figure

OWN_TASK = """
import torch
from dqnfed_flwr.tasks import Datasets, Task


class Far:
    higher_is_better = False

    def __init__(self):
        self.most = 0.0

    def update(self, found, right):
        self.most = max(self.most, (found - right).abs().max().item())

    def compute(self):
        return self.most


class Line(Task):
    def model(self):
        return torch.nn.Linear(1, 1)

    def datasets(self, partition, clients, seed):
        x = torch.linspace(-1, 1, 6)[:, None]
        return Datasets(list(zip(x, (partition + 1) * x)), list(zip(x, (partition + 1) * x)))

    def losses(self, model, batch):
        return (model(batch[0]) - batch[1]).square().mean(dim=1)

    def metrics(self):
        return {"farthest": Far()}
"""


def dqnfed(*words: object) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result


def refused(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 2, result.output
    return result.output


def config(folder: Path, data: tuple[NDArray[np.generic], NDArray[np.generic]], **settings: object) -> Path:
    """A YAML file about these features and targets; `a__b_c` stands for the key `a.b-c`."""
    np.savez(folder / "data.npz", x_train=data[0], y_train=data[1])
    keys = {key.replace("__", ".").replace("_", "-"): value for key, value in settings.items()}
    shared: Mapping[str, object] = {"data": str(folder / "data.npz"), "partition": "iid", "model": "logistic"}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({**shared, **keys, "local.threads": 1}))
    return path


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and a comparison of a regression: diabetes."""
    x, y = load_diabetes(return_X_y=True)
    folder = tmp_path_factory.mktemp("errors")
    data = scale(x).astype(np.float32), y.astype(np.float32) / 100
    mine = config(folder, data, task="regression", clients=4, rounds=3, metrics=str(folder / "metrics"))
    dqnfed("run", mine, "--output", folder / "run", "--quiet")
    comparison = ("--seeds", "0", "--grid", "local.lr=0.01,0.1", "--set", "early-stopping=2", "--jobs", "1")
    dqnfed("compare", mine, "--methods", "dqn-fed,fedavg", *comparison, "--output", folder / "compared")
    return folder


@pytest.fixture(scope="module")
def shares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of flags with AUROC: breast cancer, dealt out to so many clients that some test on one class."""
    x, y = load_breast_cancer(return_X_y=True)
    folder = tmp_path_factory.mktemp("shares")
    data = scale(x).astype(np.float32), y[:, None].astype(np.uint8)
    mine = config(folder, data, task="multi-label", clients=40, rounds=2, metrics=str(folder / "metrics"))
    said = dqnfed("run", mine, "--output", folder / "run").output
    (folder / "said.txt").write_text(said)
    return folder


def test_a_run_says_what_its_figure_is(errors: Path) -> None:
    found = read_result(errors / "run")
    assert found.figure == Figure("mae", higher=False)
    assert found.final["worst"] == max(found.accuracies.values()) > found.final["best10"]
    assert [event.improved_ratio for event in found.events] == [1.0, 1.0, 1.0]
    for path in (errors / "run").glob("*.json*"):
        assert "accurac" not in path.read_text()


def test_the_grid_of_an_error_takes_the_least(errors: Path) -> None:
    rows = json.loads((errors / "compared" / "comparison.json").read_text())["methods"]
    for row in rows:
        tried = {trial["point"]["local.lr"]: trial["validation"]["mean"] for trial in row["grid"]}
        assert row["chosen"] == {"local.lr": min(tried, key=lambda lr: tried[lr])}


@pytest.mark.parametrize("kind", ["run", "compared"])
def test_a_report_names_the_figure(errors: Path, tmp_path: Path, kind: str) -> None:
    dqnfed("report", errors / kind, "--output", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert ": test mae of the clients, less is better</h1>" in page
    assert "Down and to the left is better" in page
    assert "accurac" not in page.lower()
    assert "accurac" not in (tmp_path / "page.md").read_text().lower()


def test_the_card_of_an_exported_model_names_the_figure(errors: Path, tmp_path: Path) -> None:
    dqnfed("export", errors / "run", "--to", tmp_path)
    card = (tmp_path / "MODEL_CARD.md").read_text()
    assert "| test mae | value |" in card
    assert "outputs = model(batch)" in card
    assert "accurac" not in card.lower()


def test_the_exporter_serves_the_figure(errors: Path) -> None:
    exporter = Exporter(ExporterOptions(errors / "metrics"))
    text = exporter.exposition().decode()
    worst = max(read_result(errors / "run").accuracies.values())
    name = next(run["name"] for run in exporter.state()["runs"] if run["name"].startswith("run-"))
    assert f'dqnfed_test_figure_worst{{run="{name}",figure="mae"}} {worst}' in text
    assert "accuracy" not in text
    rounds = exporter.rounds(name)
    assert rounds is not None
    assert rounds[-1]["figure"]["name"] == "mae"


def test_clients_of_one_class_are_named_wherever_the_figure_is(shares: Path, tmp_path: Path) -> None:
    found = read_result(shares / "run")
    without = found.without_figure["test"]
    assert without == found.events[-1].evaluated.without_figure["test"]
    assert sorted([*without, *found.accuracies]) == list(range(40))
    assert f"{len(without)} ({without[0]}, {without[1]}" in (shares / "said.txt").read_text()
    dqnfed("report", shares / "run", "--output", tmp_path / "page.html")
    assert f"No auroc, so not in the figures: seed 0, clients {without[0]}, " in (tmp_path / "page.md").read_text()
    dqnfed("export", shares / "run", "--to", tmp_path)
    assert f"| evaluated, but without a figure | {len(without)} clients" in (tmp_path / "MODEL_CARD.md").read_text()
    text = Exporter(ExporterOptions(shares / "metrics")).exposition().decode()
    assert f'part="test"}} {float(len(without))}' in text


def test_what_needs_right_answers_is_refused(errors: Path) -> None:
    said = refused("reproduce", "table1", "--set", "task=regression", "--output", errors / "reproduced")
    assert "published tables are of accuracy" in said


def test_data_without_classes_are_described(errors: Path, shares: Path, tmp_path: Path) -> None:
    said = dqnfed("data", "describe", errors / "mine.yaml", "--output", tmp_path).output
    assert "4 clients hold" in said
    assert (tmp_path / "targets.csv").read_text().startswith("client,train,validation,test,mean,σ,min,max\n0,")
    assert "flag 0 %" in dqnfed("data", "describe", shares / "mine.yaml").output


def test_results_of_an_own_task_are_read_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lines_task.py").write_text(OWN_TASK)
    monkeypatch.syspath_prepend(tmp_path)
    mine = tmp_path / "mine.yaml"
    mine.write_text(yaml.safe_dump({"task": "lines_task:Line", "clients": 3, "rounds": 3, "local.threads": 1}))
    said = dqnfed("data", "describe", mine).output
    assert "3 clients hold 6 to 6 training samples" in said
    dqnfed("run", mine, "--output", tmp_path / "run", "--quiet")
    (tmp_path / "lines_task.py").unlink()
    monkeypatch.delitem(sys.modules, "lines_task")
    dqnfed("report", tmp_path / "run")
    assert "Test farthest of the clients, less is better" in (tmp_path / "run" / "report.md").read_text()


def test_a_shipped_regression_is_audited(errors: Path) -> None:
    said = dqnfed("audit", errors / "run").output
    assert "4 of 4 clients could be judged, by their loss" in said
    assert "accurac" not in (errors / "run" / "audit" / "audit.html").read_text().lower()
    record = json.loads((errors / "run" / "audit" / "audit.json").read_text())
    assert record["figure"]["name"] == "mae"
    assert record["notes"] == []


def test_a_new_task_is_audited_here_and_by_the_lines_of_its_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dqnfed("new", "audited")
    mine = "audited/audited.yaml"
    for method in ("dqn-fed", "fedavg"):
        dqnfed("run", mine, "--set", "local.threads=1", "--set", f"method={method}", "--output", method, "--quiet")
    said = dqnfed("audit", "dqn-fed", "--against", "fedavg").output
    for other in ("local only", "the start", "FedAvg"):
        assert f"The federated model against {other}" in said
    assert said.count("5 of 5 clients could be judged, by their loss") == 3
    assert "whether they are those that the run was trained on is not checked" in said
    from_data = json.loads(Path("dqn-fed/audit/audit.json").read_text())
    start_loss = json.loads(Path("dqn-fed/run.json").read_text())["start_loss"]
    assert from_data["bound"] == pytest.approx(2 * start_loss, rel=1e-8)

    dqnfed("deploy", "init", "federation", "--nodes", "5", "--host", "localhost")
    for k in range(5):
        node = tmp_path / f"node-{k}"
        node.mkdir()
        for name in ("run.json", "model.npz"):  # all that a node is given
            (node / name).write_bytes(Path("dqn-fed", name).read_bytes())
        sign = ("--sign", f"federation/nodes/node-{k}/node.key", "--output", f"lines-{k}.jsonl")
        dqnfed("audit", node, "--client", "--partition", k, "--against", "fedavg", *sign)
    lines = [f"lines-{k}.jsonl" for k in range(5)]
    verified = dqnfed(
        "audit", "dqn-fed", *(word for line in lines for word in ("--verify", line)), "--keys", "federation"
    )
    assert verified.output == "5 lines, each signed by a key of its own, of one model\n"
    dqnfed("audit", "dqn-fed", *(word for line in lines for word in ("--records", line)))
    from_lines = json.loads(Path("dqn-fed/audit/audit.json").read_text())
    assert sorted(map(json.dumps, from_lines["comparisons"])) == sorted(map(json.dumps, from_data["comparisons"]))

    changed = Path(lines[3]).read_text().replace('"name":"mae"', '"name":"mse"')
    Path(lines[3]).write_text(changed)
    found = CliRunner().invoke(app, ["audit", "--verify", lines[3], "--keys", "federation/nodes/node-3"])
    assert found.exit_code == 3
    assert "client 3: changed after it was signed" in found.output


def test_a_run_of_an_object_is_audited_in_no_other_process(tmp_path: Path, warm: str) -> None:
    """Files name the object, which nobody has after the run."""
    space: dict[str, Any] = {}
    exec(OWN_TASK, space)
    run({"clients": 2, "rounds": 1, "local.threads": 1, "output": str(tmp_path / "run")}, task=space["Line"])
    words, own = ["dqnfed", "audit", str(tmp_path / "run")], {**os.environ, "PATH": warm}
    done = subprocess.run(words, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout
    assert "task: 'object:Line' is an object that was given to run" in done.stderr
