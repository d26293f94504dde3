"""Messages change nothing: the same bits as direct calls, in one process and through Flower's serialisation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from client_app.app import app
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.data import load_client
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.engine.server_run import serve
from dqnfed_flwr.linalg.rows import RowSet
from dqnfed_flwr.methods._base import RoundRows, make_method
from dqnfed_flwr.models import build_model
from dqnfed_flwr.params import ParamSpec, line_point
from dqnfed_flwr.strategy.solve import solve
from dqnfed_flwr.types import ClientTask
from tests.helpers.grids import ShuffledGrid
from tests.helpers.hearings import batch_of
from tests.helpers.runs import TINY, WHOLE
from tests.helpers.transport import TransportGrid

PASSES: dict[str, Any] = {"local.batch-size": 16, "local.epochs": 2}
BUFFERS: dict[str, Any] = {"model": "tests.helpers.models:norm_mlp"}
HALF: dict[str, Any] = {"clients": 4, "participation": 0.5}
DITTO = {"method": "ditto", **PASSES}
LOCAL = {"method": "local", **PASSES, "split.validation-fraction": 0.3, "early-stopping": 2}
FEDMUON: dict[str, Any] = {"method": "fedmuon", "clients": 4, "model": "mlp", "local.batch-size": 16}
FEDNEW: dict[str, Any] = {"method": "fednew", "clients": 4, "ridge": 0.01, "fednew.form": "cg"}
FEDNL: dict[str, Any] = {"method": "fednl", "clients": 2, "fednl.form": "exact", "model": "tests.helpers.models:pooled"}
RUNS: dict[str, dict[str, Any]] = {
    "secant": {"curvature.kind": "secant", "curvature.memory": 2, "dqn-fed.anchor": "server-lbfgs"},
    "recomputed": {"curvature.kind": "secant", "curvature.previous": "recomputed", "dqn-fed.anchor": "momentum"},
    "hvp": {"curvature.kind": "hvp", "dqn-fed.form": "two-sided"},
    "update": {"dqn-fed.anchor": "fedavg", "local.epochs": 2, "local.batch-size": 16},
    "float64": {"dtype": "float64", "dqn-fed.form": "one-sided"},
    "buffers": {"method": "fedavg", "model": "tests.helpers.models:norm_mlp", "local.batch-size": 16},
    "samples": {"clients": 6, "participation": 0.5, "dqn-fed.anchor": "momentum"},
    "device": {**WHOLE, "rows.device": "device", "curvature.kind": "secant", "dqn-fed.anchor": "server-lbfgs"},
    "device, samples": {"rows.device": "device", "method": "fedavg", **PASSES, **HALF},
    "ditto": DITTO,
    "ditto with buffers": DITTO | BUFFERS,
    "local": LOCAL,
    "local with buffers": LOCAL | BUFFERS,
    "fedmuon": FEDMUON,
    "fedmuon, samples": FEDMUON | HALF,
    "fednew": FEDNEW,
    "fednew, samples": FEDNEW | HALF,
    "fednew, exact": FEDNEW | {"fednew.form": "exact"},
    "fednew, exact, samples": FEDNEW | HALF | {"fednew.form": "exact"},
    "fednl": FEDNL,
    "fednl, samples": FEDNL | HALF,
    "fednl, top": FEDNL | {"fednl.compressor": "top"},
}
LEARNS = {"fedmuon": 1.0} | dict.fromkeys([name for name in RUNS if name.startswith("fednew")], 0.6)
"""What is left of the mean loss at the end, at most."""


@pytest.mark.parametrize("name", RUNS)
def test_bytes_and_order_make_no_difference(name: str) -> None:
    settings = Settings.from_mapping({**TINY, "rounds": 4, **RUNS[name]})
    straight = run(settings)
    assert np.isfinite(straight.theta).all()
    first, last = (np.mean(straight.events[at].losses_before) for at in (0, -1))
    assert name not in LEARNS or last < LEARNS[name] * first
    grids = (
        TransportGrid(app, settings.clients, settings.flat()),
        ShuffledGrid(app, settings.clients, 1, settings.flat()),
    )
    for grid in grids:
        other = serve(grid, settings)
        assert np.array_equal(other.theta, straight.theta)
        assert {key: value.tobytes() for key, value in other.buffers.items()} == {
            key: value.tobytes() for key, value in straight.buffers.items()
        }
        assert [event.losses_after for event in other.events] == [event.losses_after for event in straight.events]
        assert other.accuracies == straight.accuracies


@pytest.mark.parametrize("method", ["dqn-fed", "fedsgd", "mgda"])
def test_a_run_is_what_direct_calls_make_it(method: str) -> None:
    settings = Settings.from_mapping(
        {**TINY, "rounds": 3, "method": method, "step-rule": "newton", "dqn-fed.form": "two-sided"}
    )
    clients = [DQNFedClient(settings, number, load_client(settings, number)) for number in range(settings.clients)]
    data = load_client(settings, 0)
    module = build_model(settings.model, data.input_shape, data.num_classes, seed=settings.seed)
    theta, rule = ParamSpec.of(module).flatten(module), make_method(resolve(settings))
    for number in range(1, settings.rounds + 1):
        replies = {k: client.work(ClientTask(number, number), theta) for k, client in enumerate(clients)}
        rows = RoundRows(RowSet(len(clients), len(theta), torch.float32), tuple(replies))
        for slot, reply in replies.items():
            assert reply.row is not None
            rows.held.put(slot, reply.row)
        step = solve(rule, batch_of(replies, rows, number), rows).step
        theta = line_point(theta, step, 0.0, 1.0)
    assert np.array_equal(run(settings).theta, theta)
