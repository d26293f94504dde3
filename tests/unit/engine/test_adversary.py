"""Hostile clients in one process: who they are, what they send, and that nobody else can be told to be hostile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType, RecordDict
from numpy.typing import NDArray

from client_app.app import app
from dqnfed_flwr import wire
from dqnfed_flwr.config import AttackSettings, Settings
from dqnfed_flwr.deploy.runs import server_settings
from dqnfed_flwr.engine.adversary import hostile_clients, noise_of, tampered, with_hostile
from dqnfed_flwr.engine.flower import run_flower
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.engine.run_folder import settings_of_run
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.types import ClientTask
from tests.helpers.runs import TINY, WHOLE

DIM = 650  # logistic on digits: 64 x 10 + 10
BASE: dict[str, Any] = {
    **TINY,
    "clients": 6,
    "model": "logistic",
    "rounds": 6,
    "local.threads": 1,
    "attack.clients": "1,4",
    **WHOLE,
}


def replies(settings: Settings, round_number: int = 1) -> list[RecordDict]:
    """What each client answers to the task of a round."""
    grid = InProcessGrid(with_hostile(app, settings), settings.clients, settings.flat())
    model = wire.encode_model(np.full(DIM, 0.01, np.float32), {})
    content = wire.encode_task(ClientTask(exchange=1, round=round_number, evaluate=True, num_classes=10), model)
    messages = [Message(content, node, MessageType.TRAIN) for node in grid.get_node_ids()]
    return [reply.content for reply in grid.send_and_receive(messages)]


def row(content: RecordDict) -> np.ndarray[Any, Any]:
    return content.array_records[wire.VECTORS]["gradient"].numpy()


@pytest.mark.parametrize("method", ["fedavg", "dqn-fed"])
def test_only_rows_of_hostile_clients_are_touched(method: str) -> None:
    honest, tampered = (
        replies(Settings.from_mapping({**BASE, "method": method, "attack.kind": kind})) for kind in ("none", "enlarged")
    )
    for client, (mine, his) in enumerate(zip(honest, tampered, strict=True)):
        factor = 100 if client in (1, 4) else 1
        assert np.array_equal(row(his), (row(mine) * factor).astype(np.float32))
        figures = [dict(content.metric_records[wire.FIGURES]) for content in (mine, his)]
        assert all(content.pop("seconds") for content in figures)
        assert figures[0] == figures[1]


FEDCORR: dict[str, Any] = {"method": "fedcorr", "fedcorr.preprocessing": 1, "fedcorr.finetuning": 0, "rounds": 8}


@pytest.mark.parametrize(
    ("keys", "round_number"),
    [({"method": "dqn-fed"}, 1), ({"method": "fednl"}, 1), ({**FEDCORR, "fedcorr.last": "dqn-fed"}, 7)],
)
def test_random_rows_have_their_length_where_gradients_are_sent(keys: dict[str, Any], round_number: int) -> None:
    honest, random = lengths(keys, round_number)
    assert random == pytest.approx(honest, rel=1e-5)


@pytest.mark.parametrize(
    ("keys", "round_number"),
    [
        ({"method": "fedavg"}, 1),
        ({"method": "local-newton"}, 1),
        ({"method": "fednew"}, 1),
        ({**FEDCORR, "fedcorr.last": "dqn-fed"}, 6),
        ({**FEDCORR, "fedcorr.last": "fedavg"}, 7),
    ],
)
def test_random_rows_are_as_long_as_they_come_where_models_are_sent(keys: dict[str, Any], round_number: int) -> None:
    honest, random = lengths(keys, round_number)
    assert random == pytest.approx(np.sqrt(DIM), rel=0.2)  # of N(0, I)
    assert honest < random / 2


def lengths(keys: dict[str, Any], round_number: int) -> tuple[float, float]:
    """Of a hostile client's honest row, and of his random one."""
    honest, random = (
        float(
            np.linalg.norm(row(replies(Settings.from_mapping({**BASE, **keys, "attack.kind": kind}), round_number)[1]))
        )
        for kind in ("none", "random")
    )
    return honest, random


def test_without_an_attack_there_is_no_wrapper() -> None:
    assert with_hostile(app, Settings()) is app


def attacked(kind: str, **more: Any) -> RunResult:
    return run({**BASE, "method": "fedavg", "attack.kind": kind, **more})


@pytest.mark.parametrize("kind", ["random", "enlarged"])
def test_an_attack_harms_fedavg_more_than_dqn_fed(kind: str) -> None:
    clean, hurt = attacked("none"), attacked(kind)
    assert hurt.final["mean"] < clean.final["mean"] - 0.1
    assert attacked(kind, method="dqn-fed").final["mean"] > hurt.final["mean"] + 0.05


def test_the_same_seed_gives_the_same_attack_however_many_clients_compute_at_a_time() -> None:
    settings = {**BASE, "method": "fedavg", "attack.kind": "random"}
    alone, together = (run(settings, jobs=jobs) for jobs in (1, 3))
    assert np.array_equal(alone.theta, together.theta)
    assert not np.array_equal(alone.theta, run({**settings, "attack.clients": "0,2"}).theta)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attack.kind": "zero"}, r"attack\.kind: found 'zero', but hostile clients are simulated by the in-process"),
        ({"start.epochs": 3}, r"start\.epochs: found 3, but only the in-process engine reads a client's data"),
    ],
)
def test_nodes_cannot_be_told_to(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    settings = Settings.from_mapping({**BASE, "output": str(tmp_path), **changes})
    with pytest.raises(ConfigError, match=said):
        run_flower(settings)
    with pytest.raises(ConfigError, match=said):
        settings_of_run(settings, 7)
    with pytest.raises(ConfigError, match=said):
        server_settings(settings.flat(), "", resume=False)


ROW = np.array([3.0, 0.0, -4.0], np.float32)  # of length 5
THETA = np.array([1.0, 2.0, 3.0], np.float32)


def sent(*, displacement: bool = False, seed: int = 0, **attack: Any) -> NDArray[np.floating[Any]]:
    return tampered(ROW, THETA, AttackSettings(**attack), noise_of(seed, 2, 5), displacement=displacement)


def settings(**attack: Any) -> Settings:
    return Settings.from_mapping({"clients": 20, "attack": {"kind": "zero", **attack}})


@pytest.mark.parametrize(
    ("attack", "row"),
    [
        ({"kind": "enlarged"}, [300, 0, -400]),
        ({"kind": "enlarged", "factor": -0.5}, [-1.5, 0, 2]),
        ({"kind": "zero"}, [0, 0, 0]),
        ({"kind": "none"}, [3, 0, -4]),
    ],
)
def test_what_is_sent_for_a_row(attack: dict[str, Any], row: list[float]) -> None:
    assert sent(**attack).tolist() == row


def test_random_is_the_way_to_a_model_of_noise() -> None:
    noise = noise_of(0, 2, 5).standard_normal(3)
    displaced = sent(kind="random", displacement=True)
    assert displaced == pytest.approx(THETA - noise, rel=1e-6)
    gradient = sent(kind="random")
    assert np.linalg.norm(gradient) == pytest.approx(5, rel=1e-6)
    assert gradient / np.linalg.norm(gradient) == pytest.approx(displaced / np.linalg.norm(displaced), rel=1e-5)


def test_random_depends_on_seed_round_and_node() -> None:
    drawn = {tuple(noise_of(*key).standard_normal(2)) for key in [(0, 1, 2), (1, 1, 2), (0, 2, 2), (0, 1, 3)]}
    assert len(drawn) == 4
    assert sent(kind="random").tolist() == sent(kind="random").tolist()
    assert sent(kind="random").tolist() != sent(kind="random", seed=1).tolist()


@pytest.mark.parametrize("kind", ["random", "enlarged", "zero"])
def test_the_honest_row_stays_and_so_does_its_dtype(kind: str) -> None:
    changed = sent(kind=kind)
    assert changed.dtype == np.float32
    assert ROW.tolist() == [3, 0, -4]


def test_hostile_clients_are_a_share_drawn_from_the_seed() -> None:
    first = hostile_clients(settings())
    assert len(first) == 4
    assert first <= set(range(20))
    assert first == hostile_clients(settings(kind="random", factor=3.0))
    assert first != hostile_clients(settings().model_copy(update={"seed": 1}))
    assert len(hostile_clients(settings(share=0.001))) == 1
    assert hostile_clients(settings(kind="none")) == frozenset()


@pytest.mark.parametrize(("given", "expected"), [("2, 5,8", {2, 5, 8}), ("3", {3}), (3, {3}), (0, {0})])
def test_hostile_clients_by_name(given: str | int, expected: set[int]) -> None:
    assert hostile_clients(settings(clients=given)) == expected


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        ({"clients": "2,x"}, r"attack\.clients: found '2,x'; give different whole numbers from 0, such as 2,5,8"),
        ({"clients": "2,2"}, r"attack\.clients: found '2,2'; give different"),
        ({"clients": "2,20"}, r"attack\.clients: found 20; clients = 20 allows 0\.\.19"),
        ({"clients": True}, r"attack\.clients: .*string"),
        ({"kind": "rude"}, r"attack\.kind: .*'none', 'random', 'enlarged' or 'zero'.*found 'rude'"),
        ({"share": 1.0}, r"attack\.share: .*less than 1, found 1"),
    ],
)
def test_faults_name_key_and_what_is_allowed(attack: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        settings(**attack)
