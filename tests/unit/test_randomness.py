"""Torch's generators are lent to one thread at a time, and come back as they were."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from dqnfed_flwr.randomness import seeded


def drawn(seed: int) -> list[float]:
    with seeded(seed):
        return [float(torch.rand(())) for _ in range(200)]


def test_threads_draw_what_each_would_draw_alone() -> None:
    alone = {seed: drawn(seed) for seed in range(8)}
    assert len({tuple(numbers) for numbers in alone.values()}) == 8
    with ThreadPoolExecutor(4) as pool:
        assert dict(zip(range(8), pool.map(drawn, range(8)), strict=True)) == alone


def test_the_generator_is_given_back() -> None:
    before = torch.random.get_rng_state()
    with seeded(1), seeded(2):  # one user may call another
        torch.rand(3)
    assert torch.equal(torch.random.get_rng_state(), before)
