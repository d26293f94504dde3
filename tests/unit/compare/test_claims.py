from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dqnfed_flwr.compare.claims import ClaimVerdict, findings, judge, near_one, rounds_to, speed
from dqnfed_flwr.compare.plan import Plan
from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.compare.results import Comparison, Interval, Row
from dqnfed_flwr.compare.row_specs import RowSpec
from tests.helpers.comparisons import NOWHERE, make_comparison, make_record
from tests.helpers.runs import make_event

BORNE_OUT, UNDECIDED, NOT_BORNE_OUT = ClaimVerdict.BORNE_OUT, ClaimVerdict.UNDECIDED, ClaimVerdict.NOT_BORNE_OUT


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
    interval: Interval | None, sign: int, verdict: ClaimVerdict
) -> None:
    assert judge(interval, sign) is verdict


def test_claims_against_a_worse_an_equal_and_a_better_rival() -> None:
    # Client by client 10 points above fedavg, equal to term, 10 below q-ffl; spread 20 points, 40 for fedavg.
    ours = [(0.4, 0.6), (0.5, 0.7)]
    rivals = {"fedavg": [(0.2, 0.6), (0.3, 0.7)], "term": ours, "q-ffl": [(0.5, 0.7), (0.6, 0.8)]}
    found = findings(make_comparison({"dqn-fed": ours, **rivals}))
    verdicts = {key: {each.rival.spec.method: each.verdict for each in found[key]} for key in found}
    assert verdicts["mean"] == {"fedavg": BORNE_OUT, "term": UNDECIDED, "q-ffl": NOT_BORNE_OUT}
    assert verdicts["worst10"] == {"fedavg": BORNE_OUT, "term": UNDECIDED, "q-ffl": NOT_BORNE_OUT}
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


def with_means(spec: RowSpec, *means: float) -> Record:
    """A run with one client, evaluated after every tenth round."""
    events = tuple(make_event(10 * (k + 1), (mean,)) for k, mean in enumerate(means))
    return replace(make_record(spec, 0, means[-1:]), events=events)


def test_speed_counts_rounds_to_most_of_what_both_reach() -> None:
    # Six evaluations, means of two: 0.3, 0.5, 0.6, 0.6, 0.6 and 0.15, 0.25, 0.35, 0.4, 0.45 in rounds 20 to 60. The
    # lower best is 0.45, 95 % of it 0.4275: ours is there in round 30, the rival in round 60.
    ours = with_means(RowSpec("dqn-fed"), 0.2, 0.4, 0.6, 0.6, 0.6, 0.6)
    theirs = with_means(RowSpec("fedavg"), 0.1, 0.2, 0.3, 0.4, 0.4, 0.5)
    assert speed(ours, theirs) == pytest.approx(30 / 60 - 1)
    assert speed(theirs, ours) == pytest.approx(60 / 30 - 1)


def test_one_lucky_evaluation_decides_no_speed() -> None:
    # Level at 0.5 from the third evaluation on. A single one of the lucky run was there in round 10, by chance.
    calm = with_means(RowSpec("dqn-fed"), 0.3, 0.4, *[0.5] * 10)
    lucky = with_means(RowSpec("fedavg"), 0.58, 0.1, *[0.5] * 10)
    assert speed(calm, lucky) == 0


def test_a_run_is_not_faster_because_it_ended_early() -> None:
    means = [0.1, 0.3, 0.5, 0.6, *[0.62] * 16]
    short, long = with_means(RowSpec("dqn-fed"), *means[:4]), with_means(RowSpec("fedavg"), *means)
    assert speed(short, long) == speed(long, short) == 0


def test_a_run_is_not_faster_because_it_was_looked_at_more_often() -> None:
    often = with_means(RowSpec("dqn-fed"), *[0.05 * k for k in range(1, 13)])
    events = tuple(event for number, event in enumerate(often.events, 1) if number % 4 == 0)
    assert speed(often, replace(often, events=events)) == 0


def test_two_evaluations_tell_no_speed() -> None:
    ours, theirs = with_means(RowSpec("dqn-fed"), 0.5, 0.6), with_means(RowSpec("fedavg"), 0.1, 0.6, 0.6, 0.6)
    assert math.isnan(speed(ours, theirs))


def test_speed_is_unknown_without_evaluations() -> None:
    blind = replace(make_record(RowSpec("fedavg"), 0, (0.5,)), events=(make_event(1, None),))
    assert math.isnan(speed(blind, with_means(RowSpec("dqn-fed"), 0.5)))


def test_a_slower_method_is_not_faster() -> None:
    slow = [0.05 * k for k in range(1, 13)]
    rows = [
        Row(spec, {}, tuple(replace(with_means(spec, *means), job=make_record(spec, seed).job) for seed in (0, 1)))
        for spec, means in ((RowSpec("dqn-fed"), slow), (RowSpec("fedavg"), [0.6] * 12))
    ]
    plan = Plan({}, tuple(row.spec for row in rows), (0, 1), NOWHERE, 0)
    found = findings(Comparison(plan, rows, rows[0].spec, "mean", 1))
    assert found["rounds"][0].verdict is NOT_BORNE_OUT


def test_one_seed_decides_nothing() -> None:
    found = findings(make_comparison({"dqn-fed": [(0.6, 0.6)], "fedavg": [(0.3, 0.3)]}))
    assert {each.verdict for each in (found[key][0] for key in found)} == {UNDECIDED}
    assert found["mean"][0].text == "+30.00"
    assert not found["mean"][0].bounded


def test_own_forms_and_personal_models_are_no_rivals() -> None:
    specs = [RowSpec("dqn-fed"), RowSpec("dqn-fed", {"dqn-fed.form": "one-sided"}), RowSpec("fedavg"), RowSpec("ditto")]
    rows = [Row(spec, {}, (make_record(spec, 0, (0.5, 0.6)),)) for spec in specs]
    plan = Plan({}, tuple(specs), (0,), NOWHERE, 0)
    found = findings(Comparison(plan, rows, specs[0], "mean", 1))
    assert [each.rival.spec.method for each in found["mean"]] == ["fedavg"]


def test_rho_near_one_asks_every_seed() -> None:
    spec = RowSpec("dqn-fed")
    near = Row(spec, {}, tuple(make_record(spec, seed, (0.5,), rho=1.0) for seed in (0, 1)))
    far = Row(spec, {}, (*near.records, make_record(spec, 2, (0.5,), rho=0.75)))
    assert near_one(near) == (1.0, BORNE_OUT)
    lowest, verdict = near_one(far)
    assert lowest == 0.75
    assert verdict is NOT_BORNE_OUT
    assert near_one(Row(spec, {}, (make_record(spec, 0, reason="lost"),)))[1] is UNDECIDED


def test_rounds_to_an_accuracy_that_is_never_reached_are_infinite() -> None:
    curve = [(1, 0.2), (2, 0.4), (3, 0.6)]
    assert [rounds_to(curve, target) for target in (0.1, 0.39, 0.7)] == [1.0, 2.0, math.inf]


def test_no_claims_without_a_reference() -> None:
    assert findings(make_comparison({"fedavg": [(0.5, 0.6)], "term": [(0.5, 0.6)]})) == {}
