from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.linalg.rows import RowSet
from dqnfed_flwr.methods._base import Method, RoundRows, make_method
from dqnfed_flwr.methods.fedcorr import DECISION, LEVEL, LID, NOISE, RELABELLED, NoiseEstimates, Stages
from dqnfed_flwr.strategy.solve import Solved, solve
from dqnfed_flwr.types import Extras, Float64Array, RoundBatch

CLIENTS = 6
SETTINGS: dict[str, Any] = {
    "method": "fedcorr",
    "clients": CLIENTS,
    "rounds": 20,
    "fedcorr.preprocessing": 2,
    "fedcorr.finetuning": 3,
}
EVERYBODY = tuple(range(CLIENTS))
DIMENSIONS = {0: 1.0, 1: 1.1, 2: 5.0, 3: 0.9, 4: 5.3, 5: 1.05}
LEVELS = {0: 0.3, 1: 0.2, 2: 0.6, 3: 0.25, 4: 0.05, 5: 0.3}


def settings(**changes: Any) -> Settings:
    return Settings.from_mapping({**SETTINGS, **changes})


def fedcorr(**changes: Any) -> Method:
    return make_method(resolve(settings(**changes)))


def a_round(
    method: Method,
    number: int,
    clients: tuple[int, ...],
    figures: Mapping[str, Float64Array] | None = None,
    rows: Float64Array | None = None,
) -> Solved:
    """Solve a round with the rows [K, 3] (identity-like by default) and equal samples."""
    grads = np.eye(len(clients), 8) if rows is None else rows
    held = RowSet(CLIENTS + method.reference_rows, grads.shape[1], torch.float64)
    for slot, row in enumerate(grads):
        held.put(slot, row)
    count = len(clients)
    batch = RoundBatch(
        gram=held.gram(range(count)),
        losses=np.ones(count),
        rates=np.sum(grads**2, axis=1),
        shares=np.full(count, 1 / count),
        clients=clients,
        round=number,
        figures=figures or {},
    )
    return solve(method, batch, RoundRows(held, tuple(range(count))))


def preprocess(method: Method, passes: int = 2, dimensions: Mapping[int, float] = DIMENSIONS) -> list[int]:
    """Stage 1; the clients in the order of their turns."""
    turns = []
    for number in range(1, passes * CLIENTS + 1):
        (client,) = method.select(number, EVERYBODY)
        turns.append(client)
        figures = {LID: np.array([dimensions[client]]), LEVEL: np.array([LEVELS[client]])}
        a_round(method, number, (client,), figures)
    return turns


def test_rounds_belong_to_stages() -> None:
    stages = Stages(clients=6, passes=2, finetuning=3)
    assert [stages.stage(number) for number in (1, 12, 13, 15, 16, 99)] == [1, 1, 2, 2, 3, 3]
    assert [stages.turn(number) for number in (1, 6, 7, 12)] == [(1, 0), (1, 5), (2, 0), (2, 5)]
    assert Stages(6, 2, 0).stage(13) == 3


def test_every_pass_visits_everybody_once_in_an_order_of_its_own() -> None:
    turns = preprocess(fedcorr())
    assert sorted(turns[:6]) == sorted(turns[6:]) == list(EVERYBODY)
    assert turns[:6] != turns[6:]
    assert turns == preprocess(fedcorr())
    assert turns != preprocess(fedcorr(seed=1))


def test_the_turn_of_an_absent_client_goes_to_the_next_in_the_order() -> None:
    method = fedcorr()
    turns = [method.select(number, EVERYBODY)[0] for number in range(1, 7)]
    assert method.select(3, tuple(sorted(set(EVERYBODY) - {turns[2]}))) == (turns[3],)
    assert method.select(6, tuple(sorted(set(EVERYBODY) - {turns[5]}))) == (turns[0],)
    assert method.select(3, ()) == ()


def test_clients_of_large_dimension_are_noisy_at_the_level_that_they_report() -> None:
    method = fedcorr()
    preprocess(method)
    noise = [method.directives(13, client)[NOISE] for client in EVERYBODY]
    assert noise == [0, 0, 0.6, 0, 0.05, 0]
    assert all(method.directives(13, client)[DECISION] == 2 for client in EVERYBODY)


def test_nobody_is_noisy_before_the_first_pass_is_over() -> None:
    method = fedcorr()
    assert method.directives(1, 2) == {DECISION: 0, NOISE: 0}
    preprocess(method, passes=1)
    assert method.directives(7, 2) == {DECISION: 1, NOISE: 0.6}


def test_dimensions_accumulate() -> None:
    """Client 2 is high in pass 1 only, client 4 in pass 2 only: sums 6, 6.2 against about 2."""
    method = fedcorr()
    preprocess(method, passes=1, dimensions={**dict.fromkeys(EVERYBODY, 1.0), 2: 5.0, 3: 1.01})
    for number in range(7, 13):
        (client,) = method.select(number, EVERYBODY)
        figures = {LID: np.array([5.2 if client == 4 else 1.0]), LEVEL: np.array([LEVELS[client]])}
        a_round(method, number, (client,), figures)
    assert [method.directives(13, client)[NOISE] for client in EVERYBODY] == [0, 0, 0.6, 0, 0.05, 0]


def test_dimensions_are_means_over_the_rounds_that_measured_one() -> None:
    # Client 0 often and low, client 3 once high and then without a measure; sums or means over all rounds tell other
    # stories: (4, 1.1, 4, 4.2) and (1, 1.1, 4, 1.05).
    estimates = NoiseEstimates(4, 0)
    visits = [(0, 1.0)] * 4 + [(1, 1.1), (2, 4.0), (3, 4.2)] + [(3, 0.0)] * 3
    for client, dimension in visits:
        figures = {LID: np.array([dimension]), LEVEL: np.array([0.3])}
        estimates.measure(RoundBatch(np.eye(1), np.ones(1), np.ones(1), np.ones(1), (client,), 1, figures))
    estimates.decide()
    assert estimates.noise.tolist() == [0, 0, 0.3, 0.3]


def test_equal_dimensions_make_nobody_noisy_and_are_counted() -> None:
    method = fedcorr()
    preprocess(method, dimensions=dict.fromkeys(EVERYBODY, 2.0))
    assert not any(method.directives(13, client)[NOISE] for client in EVERYBODY)
    notes = a_round(method, 13, EVERYBODY).combination.notes
    assert (notes["fallbacks"], notes["noisy_clients"], notes["no_clean_clients"]) == (2, 0, 0)


def test_a_dimension_that_could_not_be_measured_is_no_dimension() -> None:
    method = fedcorr()
    preprocess(method, dimensions={**DIMENSIONS, 0: 0.0})
    assert [method.directives(13, client)[NOISE] for client in EVERYBODY] == [0, 0, 0.6, 0, 0.05, 0]


def test_stage_two_trains_clean_clients_alone() -> None:
    method = fedcorr()
    preprocess(method)
    assert method.select(13, EVERYBODY) == (0, 1, 3, 4, 5)  # 4 is noisy, but not above 0.1
    few = fedcorr(participation=0.5)
    preprocess(few)
    chosen = [few.select(number, EVERYBODY) for number in (13, 14, 15)]
    assert all(len(clients) == 3 and 2 not in clients for clients in chosen)
    assert len(set(chosen)) > 1


def test_without_a_clean_client_stage_two_trains_all_and_says_so() -> None:
    method = fedcorr()
    state = method.export_state()
    method.restore_state({**state, "noise": np.full(CLIENTS, 0.5)})
    assert method.select(13, EVERYBODY) == EVERYBODY
    assert a_round(method, 13, EVERYBODY).combination.notes["no_clean_clients"] == 1


def test_stage_three_asks_noisy_clients_to_correct_once_more() -> None:
    method = fedcorr()
    preprocess(method)
    assert [method.directives(16, client)[DECISION] for client in EVERYBODY] == [2, 2, 3, 2, 2, 2]
    without = fedcorr(**{"fedcorr.finetuning": 0})
    preprocess(without)
    assert without.directives(13, 2)[DECISION] == 2


def test_everybody_is_offered_before_stage_three_and_a_sample_then() -> None:
    method = fedcorr(participation=0.5)
    assert [method.offered(number, 3) for number in (1, 12, 13, 15, 16)] == [6, 6, 6, 6, 3]
    assert method.select(16, (1, 2, 5)) == (1, 2, 5)


@pytest.mark.parametrize("number", [1, 13])
def test_stages_one_and_two_average_by_samples(number: int) -> None:
    rows = np.array([[2.0, 0, 0], [0, 4.0, 0]])
    solved = a_round(fedcorr(**{"fedcorr.last": "mgda"}), number, (1, 4), rows=rows)
    np.testing.assert_allclose(solved.step, [1.0, 2.0, 0.0])
    assert solved.combination.notes["stage"] == (1 if number == 1 else 2)


@pytest.mark.parametrize("last", ["fedavg", "mgda", "dqn-fed"])
def test_stage_three_is_the_last_method(last: str, rng: np.random.Generator) -> None:
    method = fedcorr(**{"fedcorr.last": last})
    alone = make_method(resolve(Settings.from_mapping({**SETTINGS, "method": last})))
    a_round(method, 15, EVERYBODY, rows=rng.standard_normal((6, 9)))
    method.step_taken(torch.ones(9, dtype=torch.float64), 1.0)  # of stage 2: none of the last method's business
    for number in (16, 17, 18):
        rows = 1 + rng.standard_normal((6, 9))
        mine, plain = a_round(method, number, EVERYBODY, rows=rows), a_round(alone, number, EVERYBODY, rows=rows)
        assert np.array_equal(mine.step.numpy(), plain.step.numpy())
        assert mine.combination.status == plain.combination.status
        for each in (method, alone):
            each.step_taken(plain.step, 0.5)
    assert method.fall_back() == alone.fall_back()


def test_a_late_row_is_kept_where_it_is_of_stage_three() -> None:
    method = fedcorr(**{"fedcorr.last": "dqn-fed", "participation": 0.5})
    kept = [number for number in range(13, 19) if method.keep_late(0, number, number + 1, lambda: np.ones(3))]
    assert kept == [16, 17, 18]
    assert not fedcorr(**{"participation": 0.5}).keep_late(0, 16, 17, lambda: np.ones(3))


def test_what_clients_send_follows_the_stage() -> None:
    method = fedcorr(**{"fedcorr.last": "dqn-fed", "dqn-fed.anchor": "fedavg"})
    first, second, third = (method.extras_of(number, 0, 7) for number in (1, 13, 16))
    assert {LID, LEVEL, RELABELLED} <= set(first.figures)
    assert not first.vectors
    assert first.limits[LEVEL] == (0.0, 1.0)
    assert first.limits[LID][1] < 1e100
    assert second == Extras(figures=(RELABELLED,))
    assert third == method.extras(7) == Extras({"anchor": (7,)}, (RELABELLED,), bits={"anchor": 4})


def test_it_goes_on_from_what_it_exported() -> None:
    straight, restored = fedcorr(), fedcorr()
    preprocess(straight, passes=1)
    restored.restore_state({name: np.array(value) for name, value in straight.export_state().items()})
    for method in (straight, restored):
        for number in range(7, 13):
            (client,) = method.select(number, EVERYBODY)
            figures = {LID: np.array([DIMENSIONS[client]]), LEVEL: np.array([LEVELS[client]])}
            a_round(method, number, (client,), figures)
    assert [straight.directives(16, k) for k in EVERYBODY] == [restored.directives(16, k) for k in EVERYBODY]


def test_the_settings_follow_the_last_method() -> None:
    plain = resolve(Settings.from_mapping({**SETTINGS, "method": "dqn-fed"}))
    given = settings(**{"fedcorr.last": "dqn-fed", "dqn-fed.anchor": "fedavg"})
    mine, default = resolve(given), resolve(settings())
    assert (mine.last.method.name, mine.before) == ("dqn-fed", Stages.of(given).before_last)
    assert (mine.work.name, mine.last.work.name) == ("fedcorr", "gradient")
    assert (mine.rule.name, mine.row_lr) == (plain.rule.name, plain.row_lr) == ("probed", given.local.lr)
    assert mine.sends_anchor_row
    assert not default.sends_anchor_row
    assert (default.rule.name, default.row_lr) == ("newton", 1.0)
    assert given.title == mine.title == "FedCorr + DQN-Fed over FedAvg"
    assert resolve(settings(**{"fedcorr.last": "fednew"})).works[-1].wants_step
    assert plain.last is plain
    assert Settings.from_mapping(given.flat()) == given


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rounds": 15}, r"rounds: found 15, but fedcorr\.preprocessing 2 x clients 6 \+ .* take 15"),
        ({"fedcorr.last": "fedcorr"}, r"fedcorr\.last: found 'fedcorr'"),
        ({"fedcorr.last": "fedcor"}, r"fedcorr\.last: found 'fedcor'; did you mean fedcorr\? allowed: .*fedavg"),
        ({"min-clients": 2}, "min-clients: fedcorr trains one client"),
        ({"step-rule": "probed"}, "step-rule: fedavg goes with newton"),
        ({"fedcorr.last": "dqn-fed", "local.work": "sgd"}, r"local\.work: dqn-fed works with"),
    ],
)
def test_what_cannot_be_run_is_refused_before_the_run(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        settings(**changes)
    assert settings(rounds=16).rounds == 16


def test_stage_3_promises_what_its_method_does_and_forgets_whom_it_disowns() -> None:
    method = fedcorr(**{"fedcorr.last": "dqn-fed", "dqn-fed.anchor": "momentum"})
    preprocess(method)
    seen = []
    for number in (13, 14, 15, 16):
        a_round(method, number, EVERYBODY)
        seen.append(method.guaranteed)
    assert seen == [False, False, True, True]
    restored = fedcorr(**{"fedcorr.last": "dqn-fed", "dqn-fed.anchor": "momentum"})
    restored.restore_state({name: np.array(value) for name, value in method.export_state().items()})
    assert restored.guaranteed
    method.step_taken(torch.ones(9, dtype=torch.float64), 1.0)
    assert any(name.endswith("anchor/last") for name in method.export_state())
    method.disown({1})
    assert not any(name.endswith("anchor/last") for name in method.export_state())
    assert not fedcorr().guaranteed
