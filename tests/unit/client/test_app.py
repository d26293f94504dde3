from __future__ import annotations

import gc
import weakref
from typing import Any, cast

import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from dqnfed_flwr.client import app, parts, path_checks, shared_models
from dqnfed_flwr.client.app import LEAST, forget_clients
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import ClientData
from dqnfed_flwr.data.clients import take_part
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.run import run_in_process
from dqnfed_flwr.engine.server_run import serve
from dqnfed_flwr.errors import ConfigError
from tests.helpers.runs import TINY


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[ClientData]]:
    """The data of every client that is built."""
    data: list[weakref.ref[ClientData]] = []

    def noted(*args: Any) -> ClientData:
        one = take_part(*args)
        data.append(weakref.ref(one))
        return one

    monkeypatch.setattr(parts, "take_part", noted)
    forget_clients()
    return data


def test_clients_are_kept_for_the_next_message_and_let_go_when_asked(loaded: list[weakref.ref[ClientData]]) -> None:
    run_in_process(Settings.from_mapping(TINY))
    gc.collect()
    assert [data() is None for data in loaded] == [False] * 3
    forget_clients()
    gc.collect()
    assert [data() is None for data in loaded] == [True] * 3


def test_a_client_counts_samples_on_the_device_and_memory_too(loaded: list[weakref.ref[ClientData]]) -> None:
    run_in_process(Settings.from_mapping({**TINY, "clients": 1, "curvature.kind": "secant", "method": "dqn-fed"}))
    (session,) = [session for session, _ in app._SESSIONS._values.values()]
    data, worker = loaded[0](), session.client._worker
    assert data is not None
    assert worker is not None
    held = sum(worker._samples.part(part).nbytes for part in ("train", "test"))
    memory = sum(values.nbytes for values in worker.export_state().values())
    assert memory > 0
    assert session.nbytes == data.nbytes + held + memory
    assert app._SESSIONS._bytes == session.nbytes


def test_two_runs_at_the_same_time_have_clients_of_their_own(loaded: list[weakref.ref[ClientData]]) -> None:
    config = Settings.from_mapping(TINY).flat()
    first, second = (Context(number, 2, {"partition-id": 0}, RecordDict(), config) for number in (1, 2))
    assert app._session_of(first) is app._session_of(first)
    assert app._session_of(first) is not app._session_of(second)
    assert len(loaded) == 2


def test_grids_number_their_runs() -> None:
    first, second = (InProcessGrid(ClientApp(), 1, {}) for _ in range(2))
    assert first.run.run_id != second.run.run_id


@pytest.mark.parametrize("given", ["abc", 1.9, -1, ""])
def test_a_partition_that_is_no_number_is_refused(given: str | float) -> None:
    context = Context(1, 2, {"partition-id": given}, RecordDict(), Settings.from_mapping(TINY).flat())
    with pytest.raises(ConfigError, match=f"partition-id: found {given!r}"):
        app._session_of(context)


@pytest.mark.parametrize("together", [0, LEAST + 1])
def test_more_clients_than_the_least_are_built_once_too(loaded: list[weakref.ref[ClientData]], together: int) -> None:
    many = {"clients": LEAST + 1, "partition": "iid", "split.samples": 0, "local.together": together}
    run_in_process(Settings.from_mapping({**TINY, **many}))
    assert len(loaded) == LEAST + 1


OWN: dict[str, Any] = {**TINY, "clients": 1, "model": "tests.helpers.models:norm_mlp", "method": "fedavg"}


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each check of a model."""
    found: list[int] = []

    def counted(*args: Any, **more: Any) -> None:
        found.append(1)
        path_checks.check_path(*args, **more)

    monkeypatch.setattr(shared_models, "check_path", counted)
    return found


def test_a_model_is_checked_once_a_run_and_node_whatever_process_a_message_comes_to(checks: list[int]) -> None:
    seen: list[int] = []

    def answer(message: Message, context: Context) -> Message:
        forget_clients()
        reply = app.app(message, context)
        seen.append(len(checks))
        return reply

    settings = Settings.from_mapping(OWN)
    for already in (0, 1):
        serve(InProcessGrid(cast(ClientApp, answer), 1, settings.flat()), settings)
        assert seen == [1 + already] * len(seen)
        assert len(seen) > settings.rounds
        seen.clear()


@pytest.mark.parametrize(
    ("note", "trusted"),
    [
        ({"run": 0, "outputs": 10}, True),
        ({"run": 1, "outputs": 10}, False),
        ({"run": 0, "outputs": 9}, False),
        ({"run": 0, "outputs": "10"}, False),
        ({"run": 0, "outputs": 0}, False),
        ({"outputs": 10}, False),
        (None, False),
    ],
)
def test_only_the_note_of_this_run_and_model_spares_the_check(
    checks: list[int], note: dict[str, Any] | None, trusted: bool
) -> None:
    """Of a train message that is the first to come to a process; it leaves the right note."""
    settings, messages = Settings.from_mapping({**OWN, "rounds": 1}), list[Message]()

    def answer(message: Message, context: Context) -> Message:
        messages.append(message)
        return app.app(message, context)

    serve(InProcessGrid(cast(ClientApp, answer), 1, settings.flat()), settings)
    forget_clients()
    checks.clear()
    (train, *_) = (message for message in messages if message.metadata.message_type == MessageType.TRAIN)
    context = Context(0, 2, {"partition-id": 0, "num-partitions": 1}, RecordDict(), settings.flat())
    if note is not None:
        context.state["checked"] = ConfigRecord(note)
    app.app(train, context)
    assert len(checks) == (not trusted)
    assert dict(context.state.config_records["checked"]) == {"run": 0, "outputs": 10}
