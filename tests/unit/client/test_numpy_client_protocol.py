from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.client.numpy_client import metrics_of, read_task
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.types import ClientReply, ClientTask, Evaluation, Probe
from tests.helpers.transport import task_config

TASKS = st.builds(
    ClientTask,
    exchange=st.integers(1, 10**6),
    round=st.integers(1, 10**6),
    train=st.booleans(),
    probe=st.booleans(),
    evaluate=st.booleans(),
    factor=st.floats(0, 1e6),
    grow=st.booleans(),
    halvings=st.integers(0, 40),
    rungs_above=st.integers(0, 20),
    rungs_below=st.integers(0, 20),
    reference_loss=st.floats(allow_nan=False),
    slope=st.floats(allow_nan=False),
    num_classes=st.integers(0, 1000),
)


@given(task=TASKS, has_step=st.booleans())
def test_a_task_survives_the_config(task: ClientTask, has_step: bool) -> None:
    config = task_config(task, has_step=has_step)
    assert all(key == key.lower() and "_" not in key for key in config)
    assert read_task(config | {"server-version": "1"}) == (task, has_step)


def test_absent_keys_take_their_default() -> None:
    assert read_task({"exchange": 3, "round": 2}) == (ClientTask(3, 2), False)


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"round": 1}, "exchange: missing"),
        ({"exchange": 1}, "round: missing"),
        ({"exchange": "1", "round": 1}, "exchange: found '1'; the task needs int"),
        ({"exchange": True, "round": 1}, "exchange: found True"),
        ({"exchange": 1, "round": 1, "train": 1}, "train: found 1; the task needs bool"),
        ({"exchange": 1, "round": 1, "factor": "x"}, "factor: found 'x'; the task needs float"),
        ({"exchange": 1, "round": 1, "directive.taken": "x"}, "directive.taken: found 'x'; a directive is a number"),
    ],
)
def test_configs_that_are_no_task_are_refused(config: dict[str, int | str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        read_task(config)


def test_metrics_hold_what_the_reply_holds() -> None:
    assert metrics_of(ClientReply(5, seconds=0.5)) == {"seconds": 0.5}
    laddered = ClientReply(5, probe=Probe(0.5, True, losses=(2.0, 0.5)), seconds=0.5)
    assert metrics_of(laddered) == {
        "seconds": 0.5,
        "probe-loss": 0.5,
        "probe-holds": True,
        "probe-loss.0": 2.0,
        "probe-loss.1": 0.5,
    }
    reply = ClientReply(5, probe=Probe(1.0, False, None, 0.5, 0.75), test=Evaluation(3, 4, 0.25), seconds=0.5)
    assert metrics_of(reply) == {
        "seconds": 0.5,
        "probe-loss": 1.0,
        "probe-holds": False,
        "probe-back-factor": 0.5,
        "probe-back-loss": 0.75,
        "test-correct": 3,
        "test-examples": 4,
        "test-loss": 0.25,
    }
