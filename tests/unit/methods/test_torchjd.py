"""The adapter to TorchJD against direct calls of it and against our own solvers."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchjd.aggregation import MGDA, SumWeighting, UPGrad, UPGradWeighting

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.errors import ConfigError, RunError
from dqnfed_flwr.linalg.min_norm import one_sided_weights
from dqnfed_flwr.methods._base import GramMethod, Method, RoundRows, VectorMethod, make_method
from dqnfed_flwr.methods.torchjd import TorchJdGram, TorchJdRows
from dqnfed_flwr.types import Combination, Float64Array, RoundBatch
from tests.helpers.gradient_sets import conflicting_set, duplicated_set, random_set
from tests.helpers.rounds import decide

ON_GRAMIANS = ("AlignedMTL", "DualProj", "GradVac", "IMTLG", "MGDA", "PCD", "PCGrad", "UPGrad")
ON_ROWS = ("ConFIG", "ExcessMTL", "GradDrop", "Mean", "Random", "Sum")
WITH_MEMORY = ("ExcessMTL", "GradVac", "PCD")
BY_CHANCE = ("GradDrop", "GradVac", "PCGrad", "Random")
seeds = st.integers(0, 10_000)


def method(name: str, seed: int = 0) -> Method:
    return make_method(resolve(Settings.from_mapping({"method": f"torchjd:{name}", "local.lr": 1.0, "seed": seed})))


def upgrad_by_our_own_solver(rows: Float64Array) -> Float64Array:
    """UPGrad: the mean of the rows, each projected onto the cone of vectors that no row opposes.

    With torchjd's regularisation G / trace + 1e-4 I. The projection of g_i is the shortest correction of g_i after
    which no slope is below 0: `one_sided_weights` with rates 0 around the reference g_i.
    """
    count = len(rows)
    gram = rows @ rows.T
    gram = gram / np.trace(gram) + 1e-4 * np.eye(count)
    projections = [
        np.eye(count)[row] + one_sided_weights(gram, np.zeros(count), offset=gram[row]).weights for row in range(count)
    ]
    return np.asarray(np.mean(projections, axis=0))


def test_upgrad_worked_by_hand() -> None:
    # (1, 0) and (-1, 1): each is projected onto what the other leaves it. (1, 0) off (-1, 1) is (1/2, 1/2), and
    # (-1, 1) off (1, 0) is (0, 1); their mean is (1/4, 3/4), but for torchjd's 1e-4 on the diagonal.
    solved = decide(method("UPGrad"), np.array([[1.0, 0.0], [-1.0, 1.0]]))
    np.testing.assert_allclose(solved.step, [0.25, 0.75], atol=1e-3)


@settings(max_examples=25)
@given(seed=seeds, clients=st.integers(1, 6), twins=st.booleans())
def test_three_opinions_on_upgrad(seed: int, clients: int, twins: bool) -> None:
    rng = np.random.default_rng(seed)
    rows = duplicated_set(rng, clients, 8) if twins else random_set(rng, clients, 8)
    step = decide(method("UPGrad"), rows).step
    np.testing.assert_allclose(step, UPGrad()(torch.from_numpy(rows)), atol=1e-6)
    np.testing.assert_allclose(step, upgrad_by_our_own_solver(rows) @ rows, atol=1e-6)


@settings(max_examples=25)
@given(seed=seeds, clients=st.integers(2, 7))
def test_upgrad_opposes_nobody(seed: int, clients: int) -> None:
    rows = conflicting_set(np.random.default_rng(seed), clients, 12)
    slopes = decide(method("UPGrad"), rows).slopes
    assert (slopes >= -1e-3 * np.sum(rows**2)).all()  # the regularisation moves slopes by about 1e-4 of the trace


@pytest.mark.parametrize("clients", [2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_our_mgda_agrees_with_theirs(seed: int, clients: int) -> None:
    # Rows near to orthogonal all bear weight; there Frank-Wolfe converges linearly. Where one bears none it would
    # need more than 100 000 steps to come this near.
    rng = np.random.default_rng(seed)
    rows = np.diag(rng.uniform(1, 2, clients)) + 0.1 * random_set(rng, clients, clients)
    ours = make_method(resolve(Settings.from_mapping({"method": "mgda", "local.lr": 1.0})))
    theirs = MGDA(epsilon=1e-12, max_iters=3000)(torch.from_numpy(rows))
    np.testing.assert_allclose(decide(ours, rows).step, theirs, atol=1e-6)


@pytest.mark.parametrize("name", ON_GRAMIANS + ON_ROWS)
def test_every_aggregator_gives_what_a_direct_call_gives(name: str) -> None:
    import torchjd.aggregation

    rows = random_set(np.random.default_rng(7), 4, 10)
    adapted = method(name)
    assert isinstance(adapted, TorchJdGram if name in ON_GRAMIANS else TorchJdRows)
    assert isinstance(adapted, GramMethod if name in ON_GRAMIANS else VectorMethod)
    step = decide(adapted, rows, number=3).step
    words = np.random.SeedSequence((0, 3)).generate_state(1, np.uint64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(words[0]) >> 1)
        direct = getattr(torchjd.aggregation, name)()(torch.from_numpy(rows))
    np.testing.assert_allclose(step, direct, atol=1e-6)


@pytest.mark.parametrize("name", BY_CHANCE)
def test_chance_depends_on_seed_and_round_alone(name: str) -> None:
    rows = 0.2 + random_set(np.random.default_rng(1), 6, 30)
    torch.manual_seed(5)
    step = decide(method(name), rows, number=2).step
    state = torch.random.get_rng_state()
    torch.manual_seed(6)
    assert torch.equal(decide(method(name), rows, number=2).step, step)
    assert not torch.equal(decide(method(name), rows, number=3).step, step)
    assert not torch.equal(decide(method(name, seed=1), rows, number=2).step, step)
    torch.manual_seed(5)
    assert torch.equal(torch.random.get_rng_state(), state)  # the global stream is left as it was


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_memory_lasts_survives_and_is_not_doubled(name: str) -> None:
    class Twice:
        def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
            type(straight).combine(doubled, batch, rows)
            return type(straight).combine(doubled, batch, rows)

    rng = np.random.default_rng(3)
    straight, doubled, resumed = method(name), method(name), method(name)
    doubled.combine = Twice().combine  # type: ignore[method-assign]
    fresh = []
    for number in range(1, 6):
        rows = random_set(rng, 3, 6)
        step = decide(straight, rows, number=number).step
        assert torch.equal(decide(doubled, rows, number=number).step, step)
        if number > 2:
            assert torch.equal(decide(resumed, rows, number=number).step, step)
        fresh.append(torch.equal(decide(method(name), rows, number=number).step, step))
        resumed = method(name)
        resumed.restore_state({key: np.array(value) for key, value in straight.export_state().items()})
    assert fresh[0]
    assert not all(fresh)


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_memory_is_forgotten_when_others_take_part(name: str) -> None:
    rng = np.random.default_rng(4)
    adapted = method(name)
    for number in (1, 2):
        decide(adapted, random_set(rng, 3, 6), number=number)
    rows = random_set(rng, 3, 6)
    expected = decide(method(name), rows, clients=[0, 1, 3], number=3).step
    assert torch.equal(decide(adapted, rows, clients=[0, 1, 3], number=3).step, expected)


@pytest.mark.parametrize("name", sorted(set(ON_GRAMIANS + ON_ROWS) - set(WITH_MEMORY)))
def test_the_others_keep_nothing(name: str) -> None:
    adapted = method(name)
    decide(adapted, np.eye(3))
    assert adapted.export_state() == {}


@pytest.mark.parametrize(("name", "weighting"), [("UPGrad", UPGradWeighting), ("Sum", SumWeighting)])
def test_what_is_not_finite_is_no_step(monkeypatch: pytest.MonkeyPatch, name: str, weighting: type) -> None:
    monkeypatch.setattr(weighting, "forward", lambda _, values: values[:, 0] * torch.nan)
    solved = decide(method(name), np.eye(2))
    assert (solved.combination.status, solved.norm) == ("not-finite", 0)
    assert not solved.step.any()


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no aggregator 'UpGrad'; it has .*UPGrad"):
        method("UpGrad")
    with pytest.raises(ConfigError, match="no aggregator 'WeightedAggregator'"):
        method("WeightedAggregator")


@pytest.mark.parametrize(
    ("name", "argument"),
    [("CAGrad", "c"), ("NashMTL", "n_tasks"), ("Constant", "weights"), ("Krum", "n_byzantine"), ("FairGrad", "alpha")],
)
def test_an_aggregator_that_needs_arguments_names_them(name: str, argument: str) -> None:
    with pytest.raises(ConfigError, match=f"torchjd:{name} cannot be made without arguments, it needs {argument}"):
        method(name)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchjd.aggregation", None)
    with pytest.raises(ConfigError, match=r"pip install 'dqnfed-flwr\[torchjd\]'"):
        method("UPGrad")


def test_a_missing_solver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("torchjd._mixins.find_spec", lambda name: None if name == "quadprog" else find(name))
    with pytest.raises(ConfigError, match=r"quadprog.*pip install 'dqnfed-flwr\[torchjd\]'"):
        method("UPGrad")


def test_a_failure_names_round_and_aggregator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchjd._linalg._dual_cone.solve_qp", lambda *_, **__: None)
    with pytest.raises(RunError, match="torchjd:UPGrad failed in round 4 on 2 rows"):
        decide(method("UPGrad"), np.eye(2), number=4)
