"""Refusals in a row suspend; the memory survives a checkpoint."""

from __future__ import annotations

import json

from dqnfed_flwr.admission import VETO, Ledger, Past, fall_behind, promise_breakers, stubborn
from dqnfed_flwr.config import AdmissionSettings
from dqnfed_flwr.types import Probe

LIMITS = AdmissionSettings(suspend_after=3, suspend_rounds=5)


def struck(times: int) -> Ledger:
    ledger = Ledger()
    for number in range(1, times + 1):
        ledger.strike(4, "not-finite", number, LIMITS)
    return ledger


def test_three_refusals_in_a_row_suspend_for_the_rounds_set() -> None:
    assert struck(2).suspended([3, 4], 3, 1) == {}
    for round_number in range(4, 9):
        assert struck(3).suspended([3, 4], round_number, 1) == {4: 8}
    assert struck(3).suspended([3, 4], 9, 1) == {}


def test_a_believed_reply_between_them_starts_the_count_anew() -> None:
    ledger = struck(2)
    ledger.believe(4, {"norm": 0.0}, {})
    assert not ledger.strike(4, "not-finite", 4, LIMITS)


def test_who_comes_back_unchanged_goes_at_once() -> None:
    ledger = struck(3)
    assert ledger.strike(4, "not-finite", 9, LIMITS)
    assert ledger.suspended([4, 5], 14, 1) == {4: 14}


def test_a_sound_reply_does_not_make_up_for_a_vote_taken() -> None:
    # The exchange that settles a round brings the next row of a client that had no vote on the step.
    ledger = Ledger()
    for number in (1, 2, 3):
        suspended = ledger.strike(4, VETO, number, LIMITS)
        ledger.believe(4, {"norm": 0.0}, {})
    assert suspended
    assert ledger.suspended([3, 4], 5, 1) == {4: 8}
    ledger.voted(4)
    assert not ledger.strike(4, VETO, 9, LIMITS)


def test_a_lost_reply_is_no_refusal() -> None:
    ledger = Ledger()
    assert not any(ledger.strike(4, reason, 1, LIMITS) for reason in ("absent", "client-error") * 5)
    assert ledger.strikes == {}


def test_nobody_stays_out_where_too_few_would_be_left() -> None:
    ledger = Ledger(until={1: 9, 2: 7, 3: 8})
    assert ledger.suspended([1, 2, 3], 5, needed=2) == {1: 9}
    assert ledger.suspended([1, 2, 3, 4], 5, needed=1) == {1: 9, 2: 7, 3: 8}


def test_the_state_survives_json() -> None:
    ledger = struck(3)
    for norm in (5.0, 1 / 3):
        ledger.believe(7, {"norm": norm, "loss": -float("inf")}, {"norm": (0.0, 1.0)})
    assert Ledger.of(json.loads(json.dumps(ledger.export_state(), allow_nan=False))) == ledger
    assert Ledger.of({}) == Ledger()


def test_the_largest_of_each_figure_is_remembered_beside_the_last() -> None:
    ledger = Ledger()
    for logs in ({"norm": 1.0, "loss": 3.0}, {"norm": 2.0}, {"norm": -1.0, "loss": -2.0}):
        ledger.believe(7, logs, {})
    assert ledger.past[7] == Past(last={"norm": -1.0, "loss": -2.0}, largest={"norm": 2.0, "loss": 3.0})


def test_what_the_others_of_a_round_stand_for_is_remembered_and_nothing_else() -> None:
    ledger = Ledger()
    rounds = [({"norm": 3.0}, (2.5, 1.0)), ({"norm": 1.0}, (0.0, 1.0)), ({"norm": 9.0}, (0.0, 1.0))]
    for logs, limit in rounds:  # the last was believed for the sake of the client's own past
        ledger.believe(7, logs, {"norm": limit})
    ledger.believe(7, {"norm": 10.0}, {})  # among too few
    assert (ledger.past[7].vouched, ledger.past[7].largest) == ({"norm": 3.0}, {"norm": 10.0})


def test_in_a_state_of_an_earlier_version_the_last_is_the_largest() -> None:
    ledger = Ledger.of({"past": {"7": {"norm": -1.0}}})
    assert ledger.past[7] == Past(last={"norm": -1.0}, largest={"norm": -1.0})


def test_stubborn_is_who_contradicts_its_own_gradient() -> None:
    probes = {
        0: Probe(0.9, True),
        1: Probe(1.1, False, back_factor=0.5, back_loss=0.9),  # a smaller factor suits
        2: Probe(1.1, False),
        3: Probe(1.0 + 1e-7, False),  # rounding
        4: Probe(float("inf"), False),
        5: Probe(1.1, False),  # its own gradient says that the step harms it
        6: Probe(1.1, False, back_factor=0.25, back_loss=0.9),  # only the last rung suits
    }
    slopes = dict.fromkeys(range(7), 1.0) | {5: -1.0}
    assert stubborn(probes, dict.fromkeys(range(7), 1.0), slopes, last_rung=0.25) == {2, 4, 6}
    assert promise_breakers(probes, dict.fromkeys(range(7), 1.0), slopes, [0, 1, 3, 5]) == {1}


def test_a_sharp_loss_rises_on_both_sides() -> None:
    probes = {
        0: Probe(1.1, False, behind_loss=1.2),
        1: Probe(1.1, False, behind_loss=0.9),
        2: Probe(1.1, False, behind_loss=1.0 - 1e-8),  # rounding
        3: Probe(1.1, False, behind_loss=float("inf")),
        4: Probe(1.1, False),  # does not say
    }
    assert fall_behind(probes, dict.fromkeys(range(5), 1.0)) == {1, 4}
