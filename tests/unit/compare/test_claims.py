from __future__ import annotations

import math

import numpy as np
import pytest

from dqnfed_flwr.compare.claims import Verdict, findings, judge, near_one, over_seeds, rounds_to, std_difference
from dqnfed_flwr.compare.entries import Entry
from dqnfed_flwr.compare.figures import Interval
from dqnfed_flwr.compare.results import Row
from tests.helpers.comparisons import make_comparison, make_record

BORNE_OUT, UNDECIDED, NOT_BORNE_OUT = Verdict.BORNE_OUT, Verdict.UNDECIDED, Verdict.NOT_BORNE_OUT


@pytest.mark.parametrize(
    ("interval", "sign", "verdict"),
    [
        (Interval(0.1, 0.2, 0.3), 1, BORNE_OUT),
        (Interval(0.1, 0.2, 0.3), -1, NOT_BORNE_OUT),
        (Interval(-0.3, -0.2, -0.1), -1, BORNE_OUT),
        (Interval(-0.3, -0.2, -0.1), 1, NOT_BORNE_OUT),
        (Interval(-0.1, 0.2, 0.3), 1, UNDECIDED),
        (Interval(0.0, 0.2, 0.3), 1, UNDECIDED),
        (Interval(math.nan, 0.2, math.nan), 1, UNDECIDED),
        (None, 1, UNDECIDED),
    ],
)
def test_a_claim_holds_where_the_whole_interval_is_on_its_side(
    interval: Interval | None, sign: int, verdict: Verdict
) -> None:
    assert judge(interval, sign) is verdict


def test_claims_against_a_worse_an_equal_and_a_better_rival() -> None:
    # Client by client 10 points above fedavg, equal to term, 10 below q-ffl; spread 20 points, 40 for fedavg.
    ours = [(0.4, 0.6), (0.5, 0.7)]
    rivals = {"fedavg": [(0.2, 0.6), (0.3, 0.7)], "term": ours, "q-ffl": [(0.5, 0.7), (0.6, 0.8)]}
    found = findings(make_comparison({"dqn-fed": ours, **rivals}))
    verdicts = {key: {each.rival.entry.method: each.verdict for each in found[key]} for key in found}
    assert verdicts["mean"] == {"fedavg": UNDECIDED, "term": UNDECIDED, "q-ffl": NOT_BORNE_OUT}
    assert verdicts["worst10"] == {"fedavg": UNDECIDED, "term": UNDECIDED, "q-ffl": NOT_BORNE_OUT}
    assert verdicts["rho"] == {"fedavg": UNDECIDED, "term": UNDECIDED, "q-ffl": UNDECIDED}
    interval = found["mean"][2].interval
    assert interval == pytest.approx((-0.1, -0.1, -0.1))
    assert found["mean"][2].text == "-10.00 [-10.00, -10.00]"


def test_claims_that_are_borne_out() -> None:
    ours, theirs = [(0.5, 0.6, 0.7)] * 2, [(0.1, 0.3, 0.5)] * 2
    found = findings(make_comparison({"dqn-fed": ours, "fedavg": theirs}))
    assert found["mean"][0].verdict is BORNE_OUT
    assert found["std"][0].interval is not None
    assert found["std"][0].interval.estimate == pytest.approx(-0.1 * math.sqrt(2 / 3))
    # Accuracies rise in three equal steps to 0.6 and 0.3: ours has 0.3 after 2 rounds (0.4), the rival after 3.
    assert found["rounds"][0].interval == pytest.approx((2 / 3 - 1,) * 3)
    assert found["rounds"][0].verdict is BORNE_OUT


def test_a_slower_method_is_not_faster() -> None:
    found = findings(make_comparison({"dqn-fed": [(0.3, 0.3)] * 2, "fedavg": [(0.6, 0.6)] * 2}))
    assert found["rounds"][0].interval == pytest.approx((0.5, 0.5, 0.5))  # 3 rounds for 2
    assert found["rounds"][0].verdict is NOT_BORNE_OUT
    assert found["mean"][0].verdict is NOT_BORNE_OUT


def test_one_seed_decides_nothing_that_is_paired_by_seed() -> None:
    found = findings(make_comparison({"dqn-fed": [(0.6, 0.6)], "fedavg": [(0.3, 0.3)]}))
    assert found["rounds"][0].verdict is UNDECIDED
    assert found["rounds"][0].text == "-33.33"
    assert over_seeds([]) is None
    assert over_seeds([1.0, math.nan, 3.0]) == pytest.approx((1.0, 2.0, 3.0))


def test_rho_near_one_asks_every_seed() -> None:
    entry = Entry("dqn-fed")
    near = Row(entry, {}, tuple(make_record(entry, seed, (0.5,), rho=1.0) for seed in (0, 1)))
    far = Row(entry, {}, (*near.records, make_record(entry, 2, (0.5,), rho=0.98)))
    assert near_one(near) == (1.0, BORNE_OUT)
    lowest, verdict = near_one(far)
    assert lowest == pytest.approx(0.98)
    assert verdict is NOT_BORNE_OUT
    assert near_one(Row(entry, {}, (make_record(entry, 0, reason="lost"),)))[1] is UNDECIDED


def test_rounds_to_an_accuracy_that_is_never_reached_are_infinite() -> None:
    record = make_record(Entry("fedavg"), 0, (0.6, 0.6))  # 0.2, 0.4, 0.6
    assert [rounds_to(record, target) for target in (0.1, 0.39, 0.7)] == [1.0, 2.0, math.inf]


def test_difference_of_spreads_by_hand() -> None:
    assert std_difference(np.array([0.0, 1.0]), np.array([0.5, 0.5])) == pytest.approx(0.5)


def test_no_claims_without_a_reference() -> None:
    assert findings(make_comparison({"fedavg": [(0.5, 0.6)], "term": [(0.5, 0.6)]})) == {}
