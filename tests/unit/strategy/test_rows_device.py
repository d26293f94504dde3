"""Where rows, steps and model lie by the setting `rows.device`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.serverapp import Grid

from dqnfed_flwr import run, wire
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.data import load_client
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.errors import ConfigError, WireError
from dqnfed_flwr.methods._base import make_method
from dqnfed_flwr.strategy.row_place import rows_device
from dqnfed_flwr.types import ClientReply, ClientTask, on_host
from dqnfed_flwr.wire.codecs import Array
from tests.helpers.runs import TINY, WHOLE

CARD = torch.device("cuda", 0)
DIM = 1000


class OnOneDevice(InProcessGrid):
    """Clients of this process, wherever the test wants them."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)

    def clients_device(self) -> torch.device:
        return self._device


def chosen(grid: Any, **settings: Any) -> torch.device | None:
    plan = resolve(Settings.from_mapping({"clients": 10, "method": "fedavg", **settings}))
    return rows_device(plan, make_method(plan), DIM, grid)


@pytest.mark.parametrize(
    ("wanted", "device", "found"),
    [
        ("auto", "cpu", None),
        ("auto", "mps", None),
        ("auto", "cuda:0", CARD),
        ("host", "cuda:0", None),
        ("device", "cpu", torch.device("cpu")),
        ("device", "cuda:0", CARD),
    ],
)
def test_rows_lie_where_the_setting_says(
    monkeypatch: pytest.MonkeyPatch, wanted: str, device: str, found: torch.device | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=1 << 30))
    assert chosen(OnOneDevice(device), **{"rows.device": wanted}) == found


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float64", 8)])
def test_a_card_is_chosen_where_four_times_the_rows_fit_it(
    monkeypatch: pytest.MonkeyPatch, dtype: str, size: int
) -> None:
    rows = 10 * DIM * size
    for memory, device in ((4 * rows, CARD), (4 * rows - 1, None)):
        card = SimpleNamespace(total_memory=memory)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, card=card: card)
        assert chosen(OnOneDevice("cuda:0"), dtype=dtype) == device


def test_a_device_that_cannot_be_had_is_refused() -> None:
    with pytest.raises(ConfigError, match="the clients are not in this process; use auto or host"):
        chosen(Grid, **{"rows.device": "device"})
    with pytest.raises(ConfigError, match="MPS has no float64; use auto or host"):
        chosen(OnOneDevice("mps"), **{"rows.device": "device"})
    assert chosen(Grid) is None


@pytest.mark.parametrize("wanted", ["auto", "device"])
def test_a_row_is_a_tensor_in_a_message_alone(wanted: str) -> None:
    settings = Settings.from_mapping({**TINY, **WHOLE, "rows.device": wanted})
    client, task = DQNFedClient(settings, 0, load_client(settings, 0)), ClientTask(1, 1)
    theta = torch.zeros(int(client.get_properties({})["dim"]))
    in_message, given = client.work(task, theta, lasting=True).row, client.work(task, theta).row
    assert isinstance(given, np.ndarray)
    assert isinstance(in_message, torch.Tensor) is (wanted == "device")
    assert in_message is not None
    assert np.array_equal(on_host(in_message), given)


def test_a_message_carries_a_tensor_as_it_is_and_its_bytes_where_they_are_asked_for() -> None:
    values = torch.arange(5, dtype=torch.float64)
    task, form = ClientTask(1, 1), wire.ReplyForm(5, {})
    content = wire.encode_reply(ClientReply(3, row=values, loss=1.0, rate=1.0))
    assert wire.decode_reply(content, task, form).row is values
    array = content.array_records["vectors"]["gradient"]
    plain = Array(values.numpy())
    assert (array.dtype, array.shape, array.data) == (plain.dtype, plain.shape, plain.data)
    assert wire.payload(content) == wire.payload(wire.encode_reply(ClientReply(3, row=values.numpy(), loss=1, rate=1)))
    for row, reason in ((values[:4], "bad-shape"), (values.half(), "bad-dtype")):
        with pytest.raises(WireError) as refused:
            wire.decode_reply(wire.encode_reply(ClientReply(3, row=row, loss=1.0, rate=1.0)), task, form)
        assert refused.value.reason == reason


def test_the_host_has_one_copy_of_a_vector_of_a_device() -> None:
    there = torch.ones(3)
    assert on_host(there).base is not None or np.shares_memory(on_host(there), there.numpy())
    values = np.ones(3)
    assert on_host(values) is values


@pytest.mark.parametrize("more", [{}, {"attack.kind": "random", "attack.share": 0.3, "guarantee.tolerate": 1}])
def test_a_run_has_the_same_bits_with_any_number_of_clients_at_a_time(more: dict[str, Any]) -> None:
    settings = {**TINY, "clients": 6, "rounds": 4, "rows.device": "device", **WHOLE, **more}
    one, three = (run(settings, jobs=jobs) for jobs in (1, 3))
    host = run({**settings, "rows.device": "host"}, jobs=1)
    assert np.array_equal(one.theta, three.theta)
    assert np.linalg.norm(one.theta - host.theta) <= 1e-5 * np.linalg.norm(host.theta)
