"""Generators of the user's own are set for every pass, and given back."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_collate

from dqnfed_flwr.guarded.borrowed import undisturbed
from dqnfed_flwr.guarded.local_loss import GuardedLoss, frozen
from dqnfed_flwr.guarded.local_task import LocalTask
from tests.helpers.guarded_app import skewed_digits
from tests.unit.guarded import noises

X, Y = skewed_digits(2)[0]
OF_THE_MODULE = np.random.default_rng(1)


class Data(Dataset[tuple[Tensor, Tensor]]):
    """With a transform, which may be any object."""

    def __init__(self, noise: Callable[[], float]) -> None:
        self.noise = noise

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return X[place] + self.noise(), Y[place]


class Slotted:
    """Its generator lies in a slot, in a list."""

    __slots__ = ("rngs",)

    def __init__(self) -> None:
        self.rngs = [np.random.default_rng(2)]

    def __call__(self) -> float:
        return float(self.rngs[0].normal())


class OfTheClass:
    rng = random.Random(5)

    def __call__(self) -> float:
        return self.rng.gauss(0, 1)


def closure() -> Callable[[], float]:
    own = np.random.RandomState(3)
    return lambda: float(own.normal())


def of_torch(generator: torch.Generator) -> float:
    return torch.randn(1, generator=generator).item()


class Holder:
    """Generators of the module lie in it."""

    rng = random.Random(6)

    @classmethod
    def of_the_class(cls) -> float:
        return cls.rng.gauss(0, 1)


HELD = Holder()


def by_import() -> float:
    from tests.unit.guarded.noises import RNG

    return float(RNG.normal())


SOURCES: dict[str, Callable[[], Callable[[], float]]] = {
    "a slot": Slotted,
    "a class": OfTheClass,
    "a closure": closure,
    "a bound method": lambda: partial(np.random.default_rng(4).normal, 0.0),
    "a partial": lambda: partial(of_torch, torch.Generator().manual_seed(1)),
    "a module": lambda: lambda: float(OF_THE_MODULE.normal()),
    "an attribute of a module": lambda: lambda: float(noises.RNG.normal()),
    "an import in a function": lambda: by_import,
    "an attribute of a class that is named": lambda: lambda: Holder.rng.gauss(0, 1),
    "a class method": lambda: lambda: Holder.of_the_class(),
    "an object of the module": lambda: lambda: HELD.rng.gauss(0, 1),
    "Python's": lambda: partial(random.Random(7).gauss, 0.0, 1.0),
}


def look(task: LocalTask) -> tuple[float, float]:
    """The loss in two passes."""
    with undisturbed(), frozen(task):
        found = GuardedLoss(task)
        return found.loss(), found.loss_and_row()[0]


@pytest.mark.parametrize("name", SOURCES)
def test_the_loss_repeats_and_the_users_own_draws_go_on(name: str) -> None:
    noise, torch_model = SOURCES[name](), nn.Linear(64, 10)
    loader = DataLoader(Data(noise), batch_size=16, shuffle=True)
    task = LocalTask(torch_model, loader, nn.CrossEntropyLoss())
    one = look(task)
    first = noise()
    assert noise() != first  # it draws, and in between
    assert look(task) == one
    assert one[0] == one[1]


def test_draws_after_a_look_are_those_without() -> None:
    def draws(*, looked: bool) -> list[float]:
        noise = Slotted()
        noise()
        if looked:
            look(LocalTask(nn.Linear(64, 10), DataLoader(Data(noise), batch_size=16), nn.CrossEntropyLoss()))
        return [noise() for _ in range(3)]

    assert draws(looked=True) == draws(looked=False)


@pytest.mark.parametrize("persistent", [False, True])
def test_worker_processes_repeat_and_those_that_are_kept_are_left_alone(persistent: bool) -> None:
    loader = DataLoader(Data(Slotted()), batch_size=16, shuffle=True, num_workers=1, persistent_workers=persistent)
    if persistent:
        next(iter(loader))
    kept: Any = loader._iterator
    task = LocalTask(nn.Linear(64, 10), loader, nn.CrossEntropyLoss())
    one = look(task)
    assert one[0] == one[1]
    assert look(task) == one
    assert loader._iterator is kept


def test_collates_and_samplers_have_generators_too() -> None:
    rng = np.random.default_rng(0)

    def collate(samples: list[Any]) -> Any:
        inputs, targets = default_collate(samples)
        return inputs + rng.normal(), targets

    class Sampler(torch.utils.data.Sampler[int]):
        def __init__(self) -> None:
            self.draw = np.random.RandomState(2)

        def __iter__(self):  # type: ignore[no-untyped-def]  # noqa: ANN204
            return iter(self.draw.permutation(len(Y))[:20].tolist())

    loader = DataLoader(Data(lambda: 0.0), batch_size=8, sampler=Sampler(), collate_fn=collate)
    task = LocalTask(nn.Linear(64, 10), loader, nn.CrossEntropyLoss())
    state = rng.bit_generator.state
    one = look(task)
    assert rng.bit_generator.state == state
    rng.normal()
    assert look(task) == one == (one[0], one[0])
