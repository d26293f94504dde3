"""Audits of tasks whose answers are neither right nor wrong, against ones worked out by hand and by whole runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dqnfed_flwr.audit.carry_out import Auditor, audit_node, audit_run
from dqnfed_flwr.audit.client_audit import ClientAudit, LossRange, audit_client, loss_bound, range_of, rounded
from dqnfed_flwr.audit.local_models import LocalModels, digest_of, read_given, train_local
from dqnfed_flwr.audit.records import canonical, read_lines, record_of, usable
from dqnfed_flwr.audit.tables import reading
from dqnfed_flwr.audit.verdict import Audit, judge
from dqnfed_flwr.audit.weights import FEDERATED, LOCAL, START, AuditedRun, Weights, read_run, start_of
from dqnfed_flwr.client import parts
from dqnfed_flwr.client.parts import StoredData, open_client
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import ClientData
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.errors import ConfigError, DataError
from dqnfed_flwr.types import Figure
from tests.helpers import fine_tuning, models
from tests.helpers.audited_tasks import HERE, KINDS, Hand, Slopes, hand_run, line, settings_of
from tests.helpers.audits import END


def by_hand(run: AuditedRun, **models_given: Weights) -> ClientAudit:
    return audit_client(run, 0, open_client(run.settings, 0), {FEDERATED: run.weights, **models_given})


def quiet(partition: int) -> Any:
    return lambda: None


def test_losses_cut_off_at_twice_the_start_and_figures_by_hand() -> None:
    """y = x has the errors 0, 2 on (1, 1), (2, 4); y = 0 has 1, 4, of which 16 is cut off at 10."""
    found = by_hand(hand_run(), start=line(0.0, 0.0))
    assert (found.bound, found.examples) == (10.0, 2)
    assert found.figure == Figure("farthest", higher=False)
    mine, theirs = found.models[FEDERATED], found.models[START]
    assert (mine.loss, mine.figure, mine.correct) == (2.0, 2.0, None)
    assert (theirs.loss, theirs.figure, theirs.correct) == (5.5, 4.0, None)
    pair = found.pairs[START]
    assert (pair.difference, pair.only_federated, pair.accuracy) == (-3.5, None, None)


def test_a_sample_in_parts_has_their_mean_by_weight() -> None:
    """y = 0: (3 + 2) / 4 for sample 1; sample 2, whose parts have no weight, has 0. y = x has 0 and 0."""
    found = by_hand(hand_run("InParts"), start=line(0.0, 0.0))
    assert [found.models[name].loss for name in (START, FEDERATED)] == [1.25 / 2, 0.0]


def test_a_sample_without_weight_has_no_loss() -> None:
    class Weighted(Hand):
        def losses(self, model: nn.Module, batch: Any) -> Any:
            return super().losses(model, batch), torch.tensor([2.0, 0.0])

    batch = torch.tensor([[1.0], [2.0]]), torch.tensor([[4.0], [9.0]])
    zero = nn.Linear(1, 1)
    nn.init.zeros_(zero.weight)
    nn.init.zeros_(zero.bias)
    assert Weighted().loss_of_each(zero, batch).tolist() == [16.0, 0.0]


def test_without_a_figure_the_mean_loss_is_shown_whole() -> None:
    found = by_hand(hand_run("Whole"), start=line(0.0, 0.0))
    assert found.models[START].figure == 8.5
    assert found.models[START].loss == 5.5


def test_a_model_that_is_no_number_counts_as_the_bound_and_has_no_figure() -> None:
    found = by_hand(hand_run(), start=line(math.nan, 0.0))
    assert (found.models[START].loss, found.models[START].figure) == (10.0, None)
    assert found.pairs[START].difference == -8.0


@pytest.mark.parametrize(("task", "loss", "floor"), [("Negative", -64, 0), ("AboveMinus1", -65, -1)])
def test_a_loss_below_the_floor_is_refused(task: str, loss: int, floor: int) -> None:
    with pytest.raises(
        DataError, match=f"client 0: the loss of test sample 1 is {loss}, below the floor {floor} .* Set"
    ):
        by_hand(hand_run(task, 4.0), start=line(6.0, 0.0))


def test_losses_of_any_sign_count_from_the_floor_of_the_task() -> None:
    """All losses of `Hand`, its start and its floor less 1: every figure less 1, and the same differences and tests."""
    found, plain = (
        by_hand(hand_run(task, at), start=line(0.0, 0.0)) for task, at in (("AboveMinus1", 4.0), ("Hand", 5.0))
    )
    assert (found.floor, found.bound, plain.floor, plain.bound) == (-1.0, 9.0, 0.0, 10.0)
    assert found.pairs == plain.pairs
    for name, figures in found.models.items():
        assert (figures.loss, figures.figure) == (plain.models[name].loss - 1, plain.models[name].figure)
    assert "9.000, twice as far above the floor, -1, as the mean" in reading(Audit("", judge([found], {}), END))[0]


def test_starts_below_0_have_a_bound_where_the_floor_is_known() -> None:
    assert range_of(hand_run("AboveMinus1", -0.75)) == LossRange(-1.0, -0.5)
    for task, start, floor, remedy in (
        ("AboveMinus1", -1.0, -1, "Begin"),
        ("Negative", -0.75, 0, "Set the task's `fl"),
    ):
        with pytest.raises(ConfigError, match=f"above {floor}. {remedy}"):
            range_of(hand_run(task, start))


def test_a_line_keeps_losses_below_0(tmp_path: Path) -> None:
    run = hand_run("AboveMinus1", 4.0)
    found = by_hand(run, start=line(0.0, 0.0))
    (tmp_path / "lines.jsonl").write_text(canonical(record_of(found)))
    assert usable(read_lines([tmp_path / "lines.jsonl"]), run) == ([found], [])
    (tmp_path / "lines.jsonl").write_text(canonical(record_of(replace(found, floor=-2.0))))
    assert "losses cut off at -2 and 9, the run asks for -1 and 9" in usable(read_lines([tmp_path]), run)[1][0]


@pytest.mark.parametrize(("loss", "said"), [(None, "its run.json does not say"), (0.0, "was 0"), (-1.0, "-1")])
def test_without_a_loss_at_the_start_there_is_no_bound(loss: float | None, said: str) -> None:
    unknown = hand_run(start_loss=loss)
    with pytest.raises(ConfigError, match=said):
        by_hand(unknown, start=line(0.0, 0.0))
    with pytest.raises(ConfigError, match=said):  # before anything is trained
        Auditor(unknown, [], None, quiet)
    assert range_of(replace(unknown, figure=None)) == LossRange(0.0, loss_bound(1))


def test_the_loss_at_the_start_is_that_of_the_first_event(tmp_path: Path) -> None:
    result = run({**settings_of(tmp_path, "regression"), "output": str(tmp_path / "run")})
    expected = np.mean(result.events[0].losses_before)
    assert read_run(tmp_path / "run").start_loss == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("task", KINDS)
def test_figures_and_local_models_are_those_of_whole_runs(tmp_path: Path, task: str) -> None:
    settings = settings_of(tmp_path, task)
    shared = run({**settings, "output": str(tmp_path / "run")})
    alone = run({**settings, "method": "local", "output": str(tmp_path / "local")})
    audited = read_run(tmp_path / "run")
    given = read_given(tmp_path / "local", audited)
    for partition in audited.clients:
        data = open_client(audited.settings, partition)
        own, theirs = (
            train_local(audited, partition, data, start_of(audited), lambda: None),
            given.find(partition, data),
        )
        assert theirs is not None
        assert own.digest == theirs.digest
        found = audit_client(audited, partition, data, {FEDERATED: audited.weights, LOCAL: own})
        assert found.models[FEDERATED].figure == rounded(shared.accuracies[partition])
        assert found.models[LOCAL].figure == rounded(alone.accuracies[partition])
        assert found.figure == shared.figure
        assert found.bound == rounded(2 * float(np.mean(shared.events[0].losses_before)))


def test_adapters_are_trained_alone_as_in_a_run_of_local(tmp_path: Path) -> None:
    fine_tuning.need_peft()
    settings = {"task": "tests.helpers.fine_tuning:Tuned", "clients": 2, "rounds": 2, "local.lr": 1.0}
    settings |= {"local.threads": 1, "method": "fedavg"}
    shared = run({**settings, "output": str(tmp_path / "run")})
    alone = run({**settings, "method": "local"})
    verdict = audit_run(read_run(tmp_path / "run"), [], None, quiet)
    for client in verdict.comparisons[0].clients:
        figures = {name: model.figure for name, model in client.audit.models.items()}
        assert figures[FEDERATED] == rounded(shared.accuracies[client.audit.partition])
        assert figures[LOCAL] == rounded(alone.accuracies[client.audit.partition])
    assert verdict.comparisons[0].other == LOCAL


def test_another_frozen_part_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run({**settings_of(tmp_path, "huber-regression"), "output": str(tmp_path / "run")})
    audited = read_run(tmp_path / "run")
    monkeypatch.setattr(models, "FROZEN_SCALE", 2.0)
    with pytest.raises(ConfigError, match="built here with other frozen parameters than in the run"):
        audit_run(audited, [], None, quiet)


@pytest.fixture(scope="module")
def harming(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of the mean's step, which leaves one client of ten with the others' slope."""
    found = {}
    for task in ("Slopes", "SlopesPermuted"):
        found[task] = tmp_path_factory.mktemp(task)
        settings = {"task": f"{HERE}:{task}", "clients": 10, "rounds": 12, "method": "fedavg", "local.lr": 0.5}
        run({**settings, "local.threads": 1, "output": str(found[task])})
    return found


def test_the_client_whose_own_line_is_better_by_construction_is_named(harming: dict[str, Path]) -> None:
    found = audit_run(read_run(harming["Slopes"]), [], None, quiet)
    assert found.worse == {LOCAL: [Slopes.odd]}
    assert found.comparisons[0].summary == (
        "clients shown to be worse off: 2. 10 of 10 clients could be judged, by their loss"
    )
    (note,) = found.notes
    assert "is not checked" in note


def test_permuted_clients_give_the_permuted_verdict(harming: dict[str, Path]) -> None:
    one, other = (audit_run(read_run(harming[task]), [], None, quiet) for task in ("Slopes", "SlopesPermuted"))
    assert other.worse == {LOCAL: [0]}
    losses = [
        {client.audit.partition: client.audit.models[FEDERATED].loss for client in audit.comparisons[0].clients}
        for audit in (one, other)
    ]
    for partition, loss in losses[0].items():
        assert loss == pytest.approx(losses[1][{2: 0, 0: 2}.get(partition, partition)], rel=1e-5)


@pytest.mark.parametrize("task", ["classification", "regression", "segmentation", "next-token"])
def test_streamed_data_give_the_same_audit_and_are_known_again(
    tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_AT_A_TIME", 7)
    run({**settings_of(tmp_path, task), "output": str(tmp_path / "run")})
    held = read_run(tmp_path / "run")
    streamed = replace(held, settings=Settings.from_mapping({**held.settings.flat(), "local.held-bytes": 0}))
    one, other = (open_client(each.settings, 1) for each in (held, streamed))
    assert isinstance(one, ClientData)
    assert isinstance(other, StoredData)
    assert digest_of(held.settings, 1, one) == digest_of(streamed.settings, 1, other)
    assert digest_of(held.settings, 1, one) != digest_of(held.settings, 2, open_client(held.settings, 2))
    trained = [
        train_local(each, 1, data, start_of(held), lambda: None) for each, data in ((held, one), (streamed, other))
    ]
    assert trained[0].digest == trained[1].digest
    given = {FEDERATED: held.weights, LOCAL: trained[0]}
    assert audit_client(held, 1, one, given) == audit_client(streamed, 1, other, given)


def test_own_data_sets_are_known_again_by_their_samples(tmp_path: Path, harming: dict[str, Path]) -> None:
    audited = read_run(harming["Slopes"])
    kept, weights = LocalModels(tmp_path, audited), start_of(audited)
    kept.keep(0, open_client(audited.settings, 0), weights)
    assert LocalModels(tmp_path, audited).find(0, open_client(audited.settings, 0)) is not None
    assert LocalModels(tmp_path, audited).find(0, open_client(audited.settings, Slopes.odd)) is None
    streamed = Settings.from_mapping({**audited.settings.flat(), "local.held-bytes": 0})
    data = open_client(audited.settings, 0)
    assert digest_of(streamed, 0, data) == digest_of(audited.settings, 0, data)


def test_a_file_is_no_data_of_a_task_that_brings_its_own(harming: dict[str, Path]) -> None:
    audited = read_run(harming["Slopes"])
    assert audited.fingerprint is None  # not that of the set `digits`, which nobody read
    with pytest.raises(ConfigError, match=r"--data: task .*Slopes brings its own data sets"):
        audit_node(audited, 0, "mine.npz", [], None, quiet)


def test_a_client_of_one_class_has_no_auroc(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "multi-label")
    flags = np.zeros((90, 1), np.uint8)
    np.savez(
        tmp_path / "set.npz", x_train=np.random.default_rng(0).normal(size=(90, 4)).astype(np.float32), y_train=flags
    )
    run({**settings, "output": str(tmp_path / "run")})
    audited = read_run(tmp_path / "run")
    found = audit_client(
        audited, 0, open_client(audited.settings, 0), {FEDERATED: audited.weights, START: start_of(audited)}
    )
    assert [model.figure for model in found.models.values()] == [None, None]
    assert found.models[FEDERATED].loss < found.models[START].loss
