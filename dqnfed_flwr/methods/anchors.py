"""Reference steps that the anchored form of DQN-Fed starts from, and the same by themselves as methods.

An anchor turns the mean gradient into a step that is fast on average and promises nothing to a single client; DQN-Fed
then changes it as little as the guarantee demands.

The methods `momentum` and `server-lbfgs` leave that out: they are what the anchored form is compared with. `momentum`
is heavy-ball momentum (Polyak 1964) on the mean gradient, `server-lbfgs` is L-BFGS (Nocedal 1980) on it with the
server's own history. No paper proposes them under these names.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.methods._base import RoundRows, State, VectorMethod
from dqnfed_flwr.schema.group import Group, own
from dqnfed_flwr.schema.run import GRADIENTS, Profile, RunSettings
from dqnfed_flwr.types import Extras, RoundBatch

if TYPE_CHECKING:
    from torch import Tensor


class Anchor(ABC):
    """A reference step u_ref [D] from the mean gradient [D] and the past."""

    def extras(self, dim: int) -> Extras:
        """What it needs of the clients besides their gradients."""
        return Extras()

    @abstractmethod
    def propose(self, mean_gradient: Tensor, rows: RoundRows, batch: RoundBatch) -> Tensor:
        """The reference step [D] of this round, from the mean gradient [D], the rows and their figures."""

    def step_taken(self, step: Tensor, factor: float) -> None:
        """Learn the step that was taken in its place, theta^{t+1} = theta^t - factor * step."""
        del step, factor

    def forget(self) -> None:
        """Start the memory anew."""
        return

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Memory, for a checkpoint."""
        return {}

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        del state


class GradientAnchor(Anchor):
    """u_ref = lr * mean gradient."""

    def __init__(self, lr: float) -> None:
        self._lr = lr

    def propose(self, mean_gradient: Tensor, rows: RoundRows, batch: RoundBatch) -> Tensor:
        """lr * mean gradient."""
        return self._lr * mean_gradient


class UpdateAnchor(Anchor):
    """u_ref = mean of the clients' local updates theta - theta_k: FedAvg's step."""

    def extras(self, dim: int) -> Extras:
        """The displacement of local passes [D]."""
        return Extras({"update": (dim,)})

    def propose(self, mean_gradient: Tensor, rows: RoundRows, batch: RoundBatch) -> Tensor:
        """Mean displacement by sample shares."""
        return rows.mean_vector("update", batch.shares)


class MomentumAnchor(Anchor):
    """u_ref = beta * u_{t-1} + lr * mean gradient, where u_{t-1} is the step solved for in the round before.

    The factor alpha is left out of the memory: it is a property of the line search, not of the direction.
    """

    def __init__(self, lr: float, beta: float) -> None:
        self._lr, self._beta = lr, beta
        self._last: Tensor | None = None

    def propose(self, mean_gradient: Tensor, rows: RoundRows, batch: RoundBatch) -> Tensor:
        """beta * u_{t-1} + lr * mean gradient."""
        step = self._lr * mean_gradient
        return step if self._last is None else step + self._beta * self._last

    def step_taken(self, step: Tensor, factor: float) -> None:
        """Remember the step; a round that left the model alone clears the memory."""
        self._last = step if factor > 0 else None

    def forget(self) -> None:
        """Drop u_{t-1}."""
        self._last = None

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """u_{t-1}, if any."""
        return {} if self._last is None else {"last": self._last.cpu().numpy()}

    def restore_state(self, state: State) -> None:
        """Take up u_{t-1}."""
        import torch

        self._last = torch.from_numpy(np.array(state["last"])) if "last" in state else None


class LbfgsAnchor(Anchor):
    """L-BFGS step of the mean gradient, from the server's own history of models and mean gradients.

    The first step, without a pair, is lr * mean gradient. Meant for full participation: with sampling the history
    mixes different clients. No pair is formed from means of different clients.
    """

    def __init__(self, lr: float, memory: int) -> None:
        from dqnfed_flwr.linalg.lbfgs import LBFGSHistory

        self._lr = lr
        self._history = LBFGSHistory(memory)
        self._gradient: Tensor | None = None
        self._move: Tensor | None = None
        self._of: tuple[int, ...] | None = None

    def propose(self, mean_gradient: Tensor, rows: RoundRows, batch: RoundBatch) -> Tensor:
        """Take in the pair of the last move, then B * mean gradient."""
        from dqnfed_flwr.linalg.lbfgs import tells_curvature

        of = tuple(client for client, share in zip(batch.clients, batch.shares, strict=True) if share)
        move, before = (self._move, self._gradient) if self._of in (None, of) else (None, None)
        if move is not None and before is not None and tells_curvature(move, batch.theta_norm):
            self._history.push(move, mean_gradient - before)
        self._gradient, self._move, self._of = mean_gradient, None, of
        if not len(self._history):
            return self._lr * mean_gradient
        return self._history.inverse_product(mean_gradient)

    def step_taken(self, step: Tensor, factor: float) -> None:
        """Remember the move s = -factor * step for the next pair."""
        self._move = -factor * step if factor > 0 else None

    def forget(self) -> None:
        """Drop all pairs."""
        self._history.clear()

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Pairs, last mean gradient, whose it is, and last move."""
        state: dict[str, NDArray[np.generic]] = {}
        if self._of is not None:
            state["of"] = np.array(self._of, np.int64)
        for number, (s, y) in enumerate(self._history.pairs):
            state[f"s{number}"], state[f"y{number}"] = s.cpu().numpy(), y.cpu().numpy()
        for name, vector in (("gradient", self._gradient), ("move", self._move)):
            if vector is not None:
                state[name] = vector.cpu().numpy()
        return state

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        import torch

        def tensor(name: str) -> Tensor | None:
            return torch.from_numpy(np.array(state[name])) if name in state else None

        self._history.clear()
        number = 0
        while (s := tensor(f"s{number}")) is not None and (y := tensor(f"y{number}")) is not None:
            self._history.push(s, y)
            number += 1
        self._gradient, self._move = tensor("gradient"), tensor("move")
        self._of = tuple(state["of"].astype(int).tolist()) if "of" in state else None  # earlier versions did not say


class MomentumSettings(Group):
    """The anchor `momentum` alone."""

    beta: float = own(0.9, "weight of the step before", ge=0, lt=1)


class ServerLbfgsSettings(Group):
    """The anchor `lbfgs` alone."""

    memory: int = own(10, "pairs of the server's history", ge=1, le=100)


class AnchorAlone(VectorMethod):
    """step = the anchor's proposal; where that is no descent for the mean loss, eta sum p_k g_k and a new memory."""

    def __init__(self, run: RunSettings, anchor: Anchor) -> None:
        super().__init__(run)
        self._anchor = anchor
        self._memories = (anchor,)
        self._proposal: Tensor
        self._reset = False

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Ask the anchor, and judge its proposal by the mean gradient."""
        import torch

        mean = rows.combine(batch.shares)
        proposal = self._anchor.propose(mean, rows, batch)
        descent = float(torch.dot(mean.double(), proposal.double()))
        self._reset = bool(mean.any()) and not (math.isfinite(descent) and descent > 0)
        if self._reset:
            self._anchor.forget()
        self._proposal = self._row_lr * mean if self._reset else proposal

    def step(self, batch: RoundBatch, rows: RoundRows) -> Tensor:
        """What `observe` found [D]."""
        return self._proposal

    def notes(self) -> Mapping[str, float]:
        """Whether the anchor was made to begin anew."""
        return {"anchor_reset": float(self._reset)}

    def step_taken(self, step: Tensor, factor: float) -> None:
        """The anchor remembers the step."""
        self._anchor.step_taken(step, factor)


def _momentum(run: RunSettings) -> AnchorAlone:
    return AnchorAlone(run, MomentumAnchor(run.row_lr, run.group_of(MomentumSettings).beta))


def _server_lbfgs(run: RunSettings) -> AnchorAlone:
    return AnchorAlone(run, LbfgsAnchor(run.row_lr, run.group_of(ServerLbfgsSettings).memory))


METHODS = (
    Profile(
        name="momentum", title="momentum (no guarantee)", settings=MomentumSettings, build=_momentum, works=GRADIENTS
    ),
    Profile(
        name="server-lbfgs",
        title="server L-BFGS (no guarantee)",
        settings=ServerLbfgsSettings,
        build=_server_lbfgs,
        works=GRADIENTS,
    ),
)
