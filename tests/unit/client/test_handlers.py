from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from dqnfed_flwr.client import handlers
from dqnfed_flwr.client.cache import LEAST
from dqnfed_flwr.client.handlers import forget_clients
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import ClientData, load_client
from dqnfed_flwr.engine.run import run_in_process
from tests.helpers.runs import TINY


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[ClientData]]:
    """The data of every client that is built."""
    data: list[weakref.ref[ClientData]] = []

    def noted(*args: Any) -> ClientData:
        one = load_client(*args)
        data.append(weakref.ref(one))
        return one

    monkeypatch.setattr(handlers, "load_client", noted)
    forget_clients()
    return data


def test_clients_are_kept_for_the_next_message_and_let_go_when_asked(loaded: list[weakref.ref[ClientData]]) -> None:
    run_in_process(Settings.from_mapping(TINY))
    gc.collect()
    assert [data() is None for data in loaded] == [False] * 3
    forget_clients()
    gc.collect()
    assert [data() is None for data in loaded] == [True] * 3


@pytest.mark.parametrize("together", [0, LEAST + 1])
def test_more_clients_than_the_least_are_built_once_too(loaded: list[weakref.ref[ClientData]], together: int) -> None:
    many = {"clients": LEAST + 1, "partition": "iid", "split.samples": 0, "local.together": together}
    run_in_process(Settings.from_mapping({**TINY, **many}))
    assert len(loaded) == LEAST + 1
