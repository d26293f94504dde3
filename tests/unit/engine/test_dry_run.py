from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.engine.dry_run import DryRun, Line, dry_run
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.errors import ConfigError, DataError, ModelError, QuorumError
from dqnfed_flwr.report.table import duration
from dqnfed_flwr.schema.groups import SHORT_STEP
from tests.helpers.runs import TINY

SHORT: dict[str, Any] = {"messages.row": 4, "messages.step": 8, "model": "mlp"}


def measured(**changes: Any) -> tuple[DryRun, Settings]:
    settings = Settings.from_mapping({**TINY, "clients": 4, "rounds": 4, "local.threads": 1, **changes})
    return dry_run(settings), settings


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "fedavg"},
        {"method": "dqn-fed", "guarantee.entitlement": "1000", "messages.step": 4},
        {"method": "fednl", "ridge": 0.01},
        {"method": "fedavg", "attack.kind": "zero", "attack.clients": "3"},
    ],
    ids=lambda changes: changes["method"],
)
def test_sizes_and_bytes_are_those_of_the_run(changes: dict[str, Any]) -> None:
    found, settings = measured(**changes)
    result = run(settings)
    usual = min((event for event in result.events[1:-1]), key=lambda event: event.cost.exchanges)
    assert found.dim == result.form.dim
    assert [client.train > 0 for client in found.clients] == [True] * 4
    assert found.bytes_up * settings.sampled == pytest.approx(usual.cost.bytes_up / usual.cost.exchanges, rel=0.01)
    assert found.bytes_down * settings.sampled == pytest.approx(usual.cost.bytes_down / usual.cost.exchanges, rel=0.01)
    assert found.round_seconds > 0


@pytest.mark.parametrize("probe_first", [False, True])
@pytest.mark.parametrize("start", [1.0, 64.0], ids=["as-a-rule", "misses"])
def test_short_messages_are_counted_as_they_are_sent(start: float, probe_first: bool) -> None:
    """A client is sent the step once in a round, and asked for one row, whatever the exchanges."""
    found, _ = measured(**SHORT, method="dqn-fed", **{"step.start": start, "step.probe-first": probe_first})
    blocks = math.ceil(found.dim / 256)  # each with a scale of two bytes
    assert blocks * (128 + 2) <= found.bytes_up <= blocks * (128 + 2) + 300
    assert blocks * (256 + 2) <= found.bytes_down <= blocks * (256 + 2) + 600


def test_with_sampling_two_clients_are_measured_among_as_many_as_keep_the_share() -> None:
    found, settings = measured(
        clients=8, participation=0.5, **{"method": "fedavg", "split.min-samples": 2, "evaluate-every": 1}
    )
    usual = run(settings).events[1]
    assert found.measured == 2
    assert found.bytes_up * 4 == pytest.approx(usual.cost.bytes_up, rel=0.01)
    assert found.bytes_down * 4 == pytest.approx(usual.cost.bytes_down, rel=0.01)


def test_masked_round_is_measured_with_the_exchange_for_its_sum() -> None:
    few = {"method": "fedavg", "privacy.mode": "masked", "privacy.min-samples": 110}  # those of all, not of four
    with pytest.raises(QuorumError, match=r"one of 1\d\d samples; 500 are needed"):
        measured(clients=6, **{**few, "privacy.min-samples": 500})
    found, settings = measured(clients=6, **few)
    event = run(settings).events[1]
    assert (found.measured, event.cost.exchanges) == (4, 2)
    assert found.bytes_up * 6 == pytest.approx(event.cost.bytes_up, rel=0.01)
    assert found.bytes_down * 6 == pytest.approx(event.cost.bytes_down, rel=0.01)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"messages.row": 6, "messages.step": 2},
        {"privacy.mode": "masked", "privacy.min-samples": 1},
        {"method": "fedavg"},
    ],
    ids=["whole", "short", "masked", "fedavg"],
)
def test_seconds_on_a_line_are_those_of_the_bytes_that_a_run_counts(changes: dict[str, Any]) -> None:
    clients, line = 4, Line.of("8Mbit/2Mbit")
    found, settings = measured(clients=clients, rounds=8, model="mlp", **changes)
    usual = [event.cost for event in run(settings).events[1:-1] if not event.cost.misses]
    assert {cost.exchanges for cost in usual} == {found.exchanges}
    down, up = found.on_line(line)
    sent = np.median([cost.bytes_down for cost in usual]) / clients / 1e6
    if resolve(settings).step_bits == SHORT_STEP:  # from 1 bit a value to 4, as the rounds have them
        least = found.dim / 8 / 1e6
        assert least < min(down, sent) <= max(down, sent) < 4.2 * least
    else:
        assert down == pytest.approx(sent, rel=0.02)
    assert up == pytest.approx(np.median([cost.bytes_up for cost in usual]) / clients / 0.25e6, rel=0.02)


@pytest.mark.parametrize(
    ("text", "down", "up", "words"),
    [
        ("10Mbit", 1e7, 1e7, "10 Mbit/s"),
        ("1.5gbit / 200 kbit", 1.5e9, 2e5, "1.5 Gbit/s down, 200 kbit/s up"),
        ("0.5bit", 0.5, 0.5, "0.5 bit/s"),
    ],
)
def test_lines_are_named_as_tc_names_them(text: str, down: float, up: float, words: str) -> None:
    assert Line.of(text) == Line(down, up)
    assert str(Line.of(text)) == words


@pytest.mark.parametrize("text", ["10", "Mbit", "0Mbit", "-1Mbit", "10Mbps", "1Mbit/", "1Mbit/2Mbit/3Mbit", "infMbit"])
def test_what_names_no_line_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError, match=r"bit, kbit, Mbit, Gbit .* give 10Mbit") as refused:
        Line.of(text)
    assert repr(text) in str(refused.value)


def test_stages_and_single_clients_are_measured_as_well() -> None:
    found, _ = measured(clients=3, rounds=20, **{"method": "fedcorr", "fedcorr.preprocessing": 2})
    assert found.measured == 1
    assert measured(clients=1, method="fedavg", participation=1.0)[0].measured == 1


def test_nothing_is_written_and_faults_are_the_runs(tmp_path: Path) -> None:
    measured(output=str(tmp_path / "out"), metrics=str(tmp_path / "metrics"), rounds=1)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="nowhere"):
        measured(data=str(tmp_path / "nowhere.npz"))
    with pytest.raises(ModelError, match="no_such_module"):
        measured(model="no_such_module:model")


@pytest.mark.parametrize(
    ("seconds", "words"), [(1.26, "1.3 seconds"), (119, "119.0 seconds"), (600, "10.0 minutes"), (2e5, "2.3 days")]
)
def test_durations_are_said_in_a_unit_that_fits(seconds: float, words: str) -> None:
    assert duration(seconds) == words
