"""Clients of a guarded app that judge steps by samples which they do not train on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dqnfed_flwr import Guaranteed
from dqnfed_flwr.client.held_out import HeldOutTerms
from dqnfed_flwr.errors import CheckpointError, ConfigError, DataError, ShapeError
from dqnfed_flwr.guarantee.held_out import FEWEST
from dqnfed_flwr.guarded.borrowed import undisturbed
from dqnfed_flwr.guarded.local_loss import GuardedLoss, frozen
from dqnfed_flwr.guarded.local_task import LocalTask
from dqnfed_flwr.guarded.mod import answer
from dqnfed_flwr.guarded.records import GuardRequest, read_request, with_task
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.types import ClientTask, Float64Array
from tests.helpers.guarded_app import CountingGrid, Part, app_on, bits, layered, skewed_digits, trained
from tests.unit.guarded.test_local_task import of
from tests.unit.guarded.test_resume import Cut, CutIn, made

(X, Y), APART = skewed_digits(2)
BATCHES = [(X, Y)]
BOTH = HeldOutTerms(0.1, alone=False)
ce = nn.CrossEntropyLoss()


@pytest.fixture(autouse=True)
def models_are_the_same_each_time() -> None:
    torch.manual_seed(0)


def losses(task: LocalTask) -> Float64Array:
    with undisturbed(), frozen(task):
        return GuardedLoss(task).held_out_losses()


def loader(part: Part, size: int, *, shuffle: bool = False) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*part), batch_size=size, shuffle=shuffle)


@pytest.mark.parametrize("size", [1, 7, 40])
@pytest.mark.parametrize("weight", [None, torch.arange(1.0, 11.0)])
def test_each_sample_has_the_loss_that_it_has_alone_however_batches_are_cut(size: int, weight: Tensor | None) -> None:
    model = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 10))
    found = losses(LocalTask(model, BATCHES, nn.CrossEntropyLoss(weight=weight), held_out=loader(APART, size)))
    model.eval()
    with torch.no_grad():
        expected = nn.functional.cross_entropy(model(APART[0]).double(), APART[1], reduction="none")
    assert np.allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)


def test_a_loader_that_shuffles_gives_the_samples_in_one_order_at_every_model() -> None:
    model = layered()
    task = LocalTask(model, BATCHES, ce, held_out=loader(APART, 7, shuffle=True))
    first = losses(task)
    assert np.array_equal(losses(task), first)
    assert not np.array_equal(losses(LocalTask(model, BATCHES, ce, held_out=loader(APART, 7))), first)


def test_outputs_may_be_objects_and_a_target_that_is_ignored_counts_nothing() -> None:
    class Named(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return SimpleNamespace(logits=super().forward(x), note="of the batch")

    def criterion(outputs: Any, targets: Tensor) -> Tensor:
        found: Tensor = ce(outputs.logits, targets)
        return found

    ignored = APART[1].clone()
    ignored[3] = -100
    found = losses(LocalTask(Named(64, 10), BATCHES, criterion, held_out=[(APART[0], ignored)]))
    assert found[3] == 0 < found[[2, 4]].min()


def test_without_samples_there_are_no_losses() -> None:
    nothing = DataLoader(TensorDataset(X[:0], Y[:0]), batch_size=4)
    assert losses(LocalTask(layered(), BATCHES, ce)).shape == (0,)
    assert losses(LocalTask(layered(), BATCHES, ce, held_out=nothing)).shape == (0,)


class OfTheBatch(nn.Module):
    """Takes the batch's mean away, as BatchNorm without running statistics does."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x - x.mean(0))  # type: ignore[no-any-return]


class Flat(nn.Linear):
    """Gives more rows than there are samples."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).repeat_interleave(2, 0)


def contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
    del targets
    near: Tensor = ce(outputs @ outputs.T, torch.arange(len(outputs)))
    return near


def of_many(outputs: Tensor, targets: Tensor) -> Tensor:
    if len(targets) == 1:
        raise ValueError("a single sample")
    found: Tensor = ce(outputs, targets)
    return found


SPOILT = X.clone()
SPOILT[5, 0] = torch.inf
SEQUENCES = [(X.reshape(4, 10, 64), torch.zeros(4, 10, 10))]


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (LocalTask(OfTheBatch(), BATCHES, ce, held_out=BATCHES), "in one batch and of .* one by one"),
        (
            LocalTask(nn.Linear(64, 4), BATCHES, contrastive, held_out=BATCHES),
            r"gives .* for 40 samples, and 0 to 0 for each by itself; .*count=lambda batch: 1",
        ),
        (
            LocalTask(Flat(64, 10), BATCHES, lambda out, y: ce(out[::2], y), held_out=BATCHES),
            r"40 samples has inputs \[40, 64\], outputs \[80, 10\], targets \[40\], and cannot .*batch_size=1",
        ),
        (
            LocalTask(
                nn.Linear(64, 10), SEQUENCES, nn.MSELoss(), count=lambda batch: batch[1].shape[1], held_out=SEQUENCES
            ),
            r"10 samples by `count` in 1 batches; .*batch_size=1",
        ),
        (
            LocalTask(nn.Linear(64, 10), BATCHES, of_many, held_out=BATCHES),
            "the criterion raised ValueError: a single sample, for one of 40 samples; .*batch_size=1",
        ),
        (LocalTask(nn.Linear(64, 10), BATCHES, ce, held_out=[(SPOILT, Y)]), r"held-out sample 5 \(nan\), of 40"),
        (LocalTask(nn.Linear(64, 10), BATCHES, ce, held_out=iter(BATCHES)), "once only"),
    ],
)
def test_losses_that_samples_do_not_have_by_themselves_are_refused(task: LocalTask, words: str) -> None:
    with pytest.raises(DataError, match=words):
        losses(task)


def test_one_sample_a_batch_suits_any_form_of_them() -> None:
    doubled = LocalTask(Flat(64, 10), BATCHES, lambda out, y: ce(out[::2], y), held_out=loader((X, Y), 1))
    assert losses(doubled).shape == (len(Y),)
    one_each = [(x[:, None], y[:, None]) for x, y in zip(*SEQUENCES[0], strict=True)]
    counted = LocalTask(nn.Linear(64, 10), SEQUENCES, nn.MSELoss(), count=lambda b: b[1].shape[1], held_out=one_each)
    assert losses(counted).shape == (4,)
    per_batch = LocalTask(nn.Linear(64, 4), BATCHES, contrastive, count=lambda batch: 1, held_out=loader((X, Y), 8))
    assert losses(per_batch).shape == (5,)


def asked(exchange: int, number: int, *, probe: bool = True, **more: Any) -> ClientTask:
    return ClientTask(exchange, number, probe=probe, factor=1.0, reference_loss=1e9, **more)


def ask(task: ClientTask, local: LocalTask, known: Any = None, terms: HeldOutTerms | None = BOTH, by: float = 0) -> Any:
    """The answer at a model that lies `by` ahead of the client's."""
    arrays = {name: (values + by * values).astype(values.dtype) for name, values in of(local.model).items()}
    return answer(GuardRequest(task, arrays, None, terms), local, known)


def test_a_client_judges_by_what_it_knows_of_the_models_before() -> None:
    local = LocalTask(layered(), BATCHES, ce, held_out=loader(APART, 7))
    first, _, known = ask(asked(1, 1, probe=False), local)
    assert first.probe is None
    assert sorted(known) == ["answers", "trained.1"]
    stays, _, later = ask(asked(2, 2), local, known)
    assert (stays.probe.held_out, stays.probe.holds) == (True, True)
    assert list(later["answers"]) == [2]
    refuses, _, _ = ask(asked(2, 2), local, known, by=20.0)
    assert (refuses.probe.held_out, refuses.probe.holds) == (False, False)
    again, *_ = ask(asked(2, 2), local, later)
    assert again.probe == stays.probe


def test_a_client_that_goes_back_without_a_test_forgets_the_answers_that_were_not_counted() -> None:
    local = LocalTask(layered(), BATCHES, ce, held_out=loader(APART, 7))
    known = ask(asked(1, 1, probe=False), local)[2]
    later = ask(asked(2, 2), local, known)[2]
    assert list(ask(asked(2, 1, probe=False), local, later)[2]["answers"]) == []


@pytest.mark.parametrize("samples", [None, FEWEST - 1])
def test_a_client_without_enough_samples_judges_by_its_training_losses(samples: int | None) -> None:
    part = None if samples is None else loader((APART[0][:samples], APART[1][:samples]), 4)
    local = LocalTask(layered(), BATCHES, ce, held_out=part)
    known = ask(asked(1, 1, probe=False), local)[2]
    reply, _, kept = ask(asked(2, 2), local, known)
    assert (reply.probe.held_out, reply.probe.holds, kept) == (None, True, {})


def test_samples_that_are_not_asked_for_are_not_read() -> None:
    def raises(batch: Any) -> Any:
        raise AssertionError(batch)

    local = LocalTask(layered(), BATCHES, ce, held_out=DataLoader(TensorDataset(*APART), collate_fn=raises))
    assert ask(asked(1, 1, probe=False), local, terms=None)[2] == {}


def test_a_part_of_another_size_than_before_is_refused() -> None:
    model = layered()
    known = ask(asked(1, 1, probe=False), LocalTask(model, BATCHES, ce, held_out=loader(APART, 7)))[2]
    fewer = LocalTask(model, BATCHES, ce, held_out=loader((APART[0][:20], APART[1][:20]), 7))
    with pytest.raises(ShapeError, match="this client has 20 held-out samples: they stay the same"):
        ask(asked(2, 2), fewer, known)


def test_terms_travel_only_where_they_are_asked_for() -> None:
    model = ArrayRecord(layered().state_dict())
    for terms in (None, HeldOutTerms(0.05, alone=True)):
        content = with_task(RecordDict({"arrays": model}), asked(1, 1), "arrays", None, terms)
        assert ("dqnfed.judge" in content) == (terms is not None)
        found = read_request(content)
        assert found is not None
        assert found.terms == terms


CLIENTS, ROUNDS = 3, 4


def wrong(part: Part) -> Part:
    """The part with the labels of its two classes exchanged."""
    inputs, labels = part
    return inputs, labels.min() + labels.max() - labels


PARTS = skewed_digits(CLIENTS, samples=60)
TRAIN = [(x[:40], y[:40]) for x, y in PARTS]
HELD_OUT: list[Part | None] = [(x[40:], y[40:]) for x, y in PARTS]
MISLED = [wrong(TRAIN[0]), *TRAIN[1:]]
"""Client 0 trains on wrong labels, and knows right ones."""


def run(
    judge: Any, train: Sequence[Part] = MISLED, held_out: Sequence[Part | None] = HELD_OUT, **more: Any
) -> list[RoundEvent]:
    app = app_on(train, layered, lr=0.2, shuffle=False, held_out=held_out)
    guarded = Guaranteed(made(FedAvg), judge=judge, **more)
    trained(guarded, app, len(train), ROUNDS, model=layered)
    return guarded.events


@pytest.mark.parametrize("judge", ["both", "held-out"])
def test_held_out_samples_refuse_a_step_that_the_training_losses_accept(judge: str) -> None:
    by_training, by_held_out = run("training"), run(judge)
    assert all(event.moved and not event.votes.refused for event in by_training)
    refused = [event for event in by_held_out if event.votes.refused_held_out]
    assert refused
    assert {node for event in refused for node in event.votes.refused_held_out} == {2}
    assert refused[0].votes.refused_training == ()
    assert refused[0].factor < by_training[refused[0].round - 1].factor
    assert [event.votes.unable for event in by_held_out] == [()] * len(by_held_out)


def test_a_client_without_a_held_out_part_is_named(said: list[str]) -> None:
    events = run("both", TRAIN, [HELD_OUT[0], None, HELD_OUT[2]])
    assert [event.votes.unable for event in events] == [(3,)] * ROUNDS
    (words,) = [line for line in said if "cannot judge" in line]
    assert words.startswith("Clients 3 cannot judge by a held-out part: ")
    assert "held_out of a LocalTask" in words


def test_where_nobody_asks_for_it_a_held_out_part_changes_no_bit() -> None:
    def figures(events: list[RoundEvent]) -> Any:
        return [(event.losses_after, event.factor, event.cost.bytes_down, event.votes.unable) for event in events]

    assert figures(run("training")) == figures(run("training", held_out=()))


@pytest.mark.parametrize("cut", [2, 3])
def test_a_run_that_was_cut_off_judges_as_it_would_have(cut: int, tmp_path: Path) -> None:
    def resumable(grid: CountingGrid, **more: Any) -> tuple[Any, dict[str, bytes]]:
        guarded = Guaranteed(made(FedAvg), judge="both", **more)
        result = trained(guarded, app, CLIENTS, ROUNDS, model=layered, grid=grid)
        return [(e.factor, e.losses_after, e.votes.refused_held_out) for e in guarded.events], bits(result.arrays)

    app = app_on(MISLED, layered, lr=0.2, shuffle=False, held_out=HELD_OUT)
    whole = resumable(CountingGrid(app, CLIENTS))
    grid = CountingGrid(app, CLIENTS)
    with pytest.raises(Cut):
        resumable(grid, output=tmp_path, listeners=[CutIn(cut)])
    with pytest.raises(CheckpointError, match=r"step\.judge"):
        trained(Guaranteed(made(FedAvg), output=tmp_path, resume=True), app, CLIENTS, ROUNDS, model=layered, grid=grid)
    assert resumable(grid, output=tmp_path, resume=True) == whole


def test_the_users_functions_see_their_own_state_alone_and_a_failure_forgets_nothing() -> None:
    seen: list[list[str]] = []

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        seen.append([key for key in context.state if key.startswith("dqnfed")])
        if len(seen) == 2:
            raise ValueError("once")
        return call_next(message, context)

    app = app_on(TRAIN, layered, lr=0.2, held_out=HELD_OUT, mods=[mod])
    grid = CountingGrid(app, CLIENTS)
    guarded = Guaranteed(made(FedAvg), judge="both")
    trained(guarded, app, CLIENTS, 2, model=layered, grid=grid)
    assert not any(seen)
    for context in grid._contexts.values():
        assert {"dqnfed.checked", "dqnfed.held-out"} <= context.state.keys()


def test_another_judge_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"step\.judge.*'training', 'held-out' or 'both'"):
        Guaranteed(FedAvg(), judge="heldout")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"guarantee\.held-out-level"):
        Guaranteed(FedAvg(), judge="both", held_out_level=0)
