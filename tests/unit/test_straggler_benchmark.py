"""The benchmark of slow clients: its clock, its rival, and what it reports."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import stragglers
from benchmarks._clock import Clock
from benchmarks._fedbuff import FedBuff
from benchmarks._queueing import QueueingGrid
from benchmarks._slow_clients import Law, counted
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.client.parts import open_client
from dqnfed_flwr.config import Settings
from dqnfed_flwr.strategy import exchange
from dqnfed_flwr.types import ClientTask
from tests.helpers.quadratics import Federation, Quadratic

CENTERS = np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]])


def test_fedbuff_weighs_updates_by_how_many_steps_were_made_meanwhile() -> None:
    clock = Clock()
    grid = QueueingGrid(Federation([Quadratic(center) for center in CENTERS]).app(), 3, clock)
    for client, node in grid.nodes.items():
        node.seconds = (1.0, 2.5, 5.5)[client]
    start = np.array([3.0, -1.0])
    loop, models = FedBuff(grid, clock, start, 2, 0), []
    for end in (2.0, 3.0):
        loop.step()
        assert clock.now - 1000.0 == end
        models.append(loop.theta)
    rows = np.array(start) - CENTERS
    np.testing.assert_allclose(models[0], start - rows[0])  # the mean of two updates of client 0, of the first model
    late = rows[1] / np.sqrt(2)  # client 1 began with the first model, and a step was made since
    np.testing.assert_allclose(models[1], models[0] - (late + models[0] - CENTERS[0]) / 2)


def test_a_client_has_its_own_speed_and_drops_out_as_often_as_it_should() -> None:
    law = Law.lognormal(4000, 2.0, sigma=1.0, drop=0.1, seed=3)
    assert np.mean(np.log(law.speeds / 2)) == pytest.approx(0, abs=0.05)
    assert np.std(np.log(law.speeds / 2)) == pytest.approx(1, abs=0.05)
    out = [law.drops(client, number) for client in range(50) for number in range(40)]
    assert np.mean(out) == pytest.approx(0.1, abs=0.02)
    assert law.drops(3, 7) == Law.lognormal(4000, 2.0, sigma=1.0, drop=0.1, seed=3).drops(3, 7)


@pytest.mark.parametrize(("method", "trained", "judged"), [("fedavg", 1, 1), ("dqn-fed", 2, 0)])
def test_passes_are_counted(method: str, trained: int, judged: int) -> None:
    keys = {**stragglers.SETTINGS, "method": method, "model": "logistic"}
    settings = Settings.from_mapping({**keys, "split.alpha": 0.5})
    source = open_client(settings, 0)
    client, task = DQNFedClient(settings, 0, source), ClientTask(exchange=1, round=1, num_classes=10)
    theta = np.zeros(650, np.float32)
    client.work(task, theta)  # the first message checks the data, too
    with counted() as samples:
        client.work(task, theta)
    assert (samples.trained, samples.judged) == (trained * source.count("train"), judged * source.count("train"))


def test_the_race_of_small_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ("FedAvg", "DQN-Fed, deadline", "gradients, quorum", stragglers.BARRED)
    monkeypatch.setattr(stragglers, "RUNS", {name: stragglers.RUNS[name] for name in chosen})
    monkeypatch.setattr(stragglers, "BUFFERS", (3,))
    before, target = vars(exchange)["time"], tmp_path / "figures.json"
    options = ["--rounds", "4", "--seeds", "1", "--set", "model=logistic", "--set", "split.samples=300"]
    records = []
    for _ in range(2):
        stragglers.main([*options, "--json", str(target)])
        records.append(json.loads(target.read_text()))
    assert vars(exchange)["time"] is before
    assert records[0]["runs"] == records[1]["runs"]
    runs = {row["run"]: row for row in records[0]["runs"]}
    assert [*runs] == ["FedAvg", "FedBuff, K = 3", *chosen[1:]]
    assert runs["FedAvg"]["steps"] == 4
    assert runs["FedAvg"]["over_fedavg"] == 1
    assert all(0 <= row["unharmed"] <= 1 for row in runs.values())
    assert runs[stragglers.BARRED]["unharmed"] == 1
    assert runs[stragglers.BARRED]["steps"] < runs["gradients, quorum"]["steps"]
    assert {bar["figure"] for bar in records[0]["bars"]} == {"over_fedavg", "unharmed"}
