"""Steps of the mean row with a memory on the server: heavy-ball momentum, and L-BFGS.

They are fast on average and promise nothing to a single client. DQN-Fed takes one of them as its anchor by default, and
changes it as little as the guarantee demands; by themselves they are what that is compared with. `momentum` is
heavy-ball momentum (Polyak 1964), `server-lbfgs` is L-BFGS (Nocedal 1980) with the server's own history. No paper
proposes them under these names.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.methods._base import RoundRows, State, VectorMethod
from dqnfed_flwr.schema.group import Group, expert
from dqnfed_flwr.schema.plan import GRADIENTS, Profile, RunPlan
from dqnfed_flwr.schema.work import SGD
from dqnfed_flwr.types import RoundBatch, Sees, on_host

if TYPE_CHECKING:
    from torch import Tensor, device


class MeanGradientMethod(VectorMethod):
    """A step from the mean gradient and the past.

    Where the mean loss does not fall along it, the memory begins anew, and the step is eta sum p_k g_k.
    """

    sees = Sees.PRODUCTS | Sees.SUM

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        self._step: Tensor
        self._reset = False

    @abstractmethod
    def from_mean(self, mean_gradient: Tensor, batch: RoundBatch) -> Tensor:
        """The step [D] of this round, from the mean gradient [D] and the figures of the round."""

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Make the step, and judge it by the mean gradient."""
        from dqnfed_flwr.linalg.lbfgs import dot

        mean = rows.combine(batch.shares)
        step = self.from_mean(mean, batch)
        descent = dot(mean, step)
        self._reset = bool(mean.any()) and not (math.isfinite(descent) and descent > 0)
        if self._reset:
            self.forget()
        self._step = self._row_lr * mean if self._reset else step

    def step(self, batch: RoundBatch, rows: RoundRows) -> Tensor:
        """What `observe` found [D]."""
        return self._step

    def notes(self) -> Mapping[str, float]:
        """Whether the memory was made to begin anew."""
        return {"anchor_reset": float(self._reset)}


class MomentumSettings(Group):
    """Momentum."""

    beta: float = expert(0.9, "weight of the step before", ge=0, lt=1)


class Momentum(MeanGradientMethod):
    """step = beta * u_{t-1} + eta * mean gradient, where u_{t-1} is the step solved for in the round before.

    With local SGD the mean displacement takes the place of eta times the mean gradient. FedAvgM adds up these means;
    here the memory is the step that was taken, so as an anchor it goes on from what the guarantee made of it.

    The factor alpha is left out of the memory: it is a property of the line search, not of the direction.
    """

    _remembered = ("last",)

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        self._beta = run.group_of(MomentumSettings).beta
        self._last: Tensor | None = None

    def from_mean(self, mean_gradient: Tensor, batch: RoundBatch) -> Tensor:
        """beta * u_{t-1} + eta * mean gradient."""
        step = self._row_lr * mean_gradient
        return step if self._last is None else step + self._beta * self._last.to(step.device)

    def step_taken(self, step: Tensor, factor: float) -> None:
        """Remember the step; a round that left the model alone clears the memory."""
        self._last = step if factor > 0 else None

    def forget(self) -> None:
        """Drop u_{t-1}."""
        self._last = None


class ServerLbfgsSettings(Group):
    """Server L-BFGS."""

    memory: int = expert(10, "pairs of the server's history", ge=1, le=100)


class ServerLbfgs(MeanGradientMethod):
    """L-BFGS step of the mean gradient, from the server's own history of models and mean gradients.

    The first step, without a pair, is eta * mean gradient. Meant for full participation: with sampling the history
    mixes different clients. No pair is formed from means of different clients.
    """

    _remembered = ("gradient", "move", "of")

    def __init__(self, run: RunPlan) -> None:
        from dqnfed_flwr.linalg.lbfgs import LBFGSHistory

        super().__init__(run)
        self._history = LBFGSHistory(run.group_of(ServerLbfgsSettings).memory)
        self._gradient: Tensor | None = None
        self._move: Tensor | None = None
        self._of: tuple[int, ...] = ()  # whose it is

    def from_mean(self, mean_gradient: Tensor, batch: RoundBatch) -> Tensor:
        """Take in the pair of the last move, then B * mean gradient."""
        from dqnfed_flwr.linalg.lbfgs import tells_curvature

        self._bring_to(mean_gradient.device)
        of = tuple(client for client, share in zip(batch.clients, batch.shares, strict=True) if share)
        move, before = (self._move, self._gradient) if self._of == of else (None, None)
        if move is not None and before is not None and tells_curvature(move, batch.theta_norm):
            self._history.push(move, mean_gradient - before)
        self._gradient, self._move, self._of = mean_gradient, None, of
        if not len(self._history):
            return self._row_lr * mean_gradient
        return self._history.inverse_product(mean_gradient)

    def _bring_to(self, device: device) -> None:
        """A memory that was restored lies on the host, and goes to where the rows are."""
        self._move, self._gradient = (x if x is None else x.to(device) for x in (self._move, self._gradient))
        pairs = self._history.pairs
        if pairs and pairs[0][0].device != device:
            self._history.clear()
            for s, y in pairs:
                self._history.push(s.to(device), y.to(device))

    def step_taken(self, step: Tensor, factor: float) -> None:
        """Remember the move s = -factor * step for the next pair."""
        self._move = -factor * step if factor > 0 else None

    def forget(self) -> None:
        """Drop all pairs."""
        self._history.clear()

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Pairs, last mean gradient, whose it is, and last move."""
        kept = super().export_state()
        for k, (s, y) in enumerate(self._history.pairs):
            kept |= {f"s{k}": on_host(s), f"y{k}": on_host(y)}
        return kept

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        import torch

        super().restore_state(state)
        self._history.clear()
        number = 0
        while f"s{number}" in state:
            self._history.push(*(torch.from_numpy(np.array(state[f"{kind}{number}"])) for kind in "sy"))
            number += 1


MEMORY_ALONE = "it is an anchor of DQN-Fed alone, on the same rows"

METHODS = (
    Profile(
        name="momentum",
        title="momentum (no guarantee)",
        settings=MomentumSettings,
        build=Momentum,
        works=(*GRADIENTS, SGD),
        one_gradient=MEMORY_ALONE,
    ),
    Profile(
        name="server-lbfgs",
        title="server L-BFGS (no guarantee)",
        settings=ServerLbfgsSettings,
        build=ServerLbfgs,
        works=GRADIENTS,
        one_gradient=MEMORY_ALONE,
    ),
)
