"""The anchored form of DQN-Fed: a fast reference step, changed as little as the guarantee demands.

`dqn_fed` names the paper and lists the deviations.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.config import DqnFedSettings
from dqnfed_flwr.linalg.min_norm import GramSolution, one_sided_weights
from dqnfed_flwr.methods._base import Method, RoundRows, State
from dqnfed_flwr.methods.absent import AbsentClients, AbsentRow
from dqnfed_flwr.methods.anchors import Anchor, GradientAnchor
from dqnfed_flwr.methods.rate_method import OneSided, describe
from dqnfed_flwr.methods.rates import fit_clients, limit_spread
from dqnfed_flwr.types import Combination, Extras, Float64Array, RoundBatch


class AnchoredMethod(Method):
    """DQN-Fed around a reference step: min |u - u_ref|^2 subject to grads @ u >= rates.

    Its dual is the one-sided problem with rates lowered by what the reference already gives,
    u = u_ref + weights @ grads.

    With sampling, clients that took part in the last `absent-rounds` rounds and are absent now have a say as well:
    the newest gradient h that the server has of each asks for h . u >= 0. It is a gradient at an earlier model, so
    this keeps the step from undoing what others have just learnt, and promises them nothing. Where no step meets
    these conditions beside those of the participants, the absent are left out of the round and counted.

    A client whose loss is below its entitlement e asks only for g_k . u >= -(e - f_k).

    Where no such step exists, or no length of it suits everybody (a noisy reference does that to clients near their
    optimum), the method retreats for one round: the anchor starts anew and the step is that of `OneSided`.

    Parameters
    ----------
    settings : DqnFedSettings
        Proportions and scale of the rates.
    anchor : Anchor
        Makes the reference; it takes the slot after those of the participants.
    absent : AbsentClients
        Remembers rows; they take the last slots.
    """

    guaranteed = True

    def __init__(self, settings: DqnFedSettings, anchor: Anchor, absent: AbsentClients) -> None:
        self._settings = settings
        self._anchor = anchor
        self._fallback = GradientAnchor(settings.lr)
        self._one_sided = OneSided(settings)
        self._retreated = False
        self._reset = False
        self._memory = absent
        self._absent: tuple[AbsentRow, ...] = ()
        self.reference_rows = 1 + absent.room

    def extras(self, dim: int) -> Extras:
        """What the anchor needs."""
        return self._anchor.extras(dim)

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Remember the rows, and find those of clients that are absent now."""
        self._reset = False
        self._absent = self._memory.turn(batch, rows)

    def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        """Coefficients of the K rows, of the reference, and of the rows of absent clients."""
        if self._retreated:
            return self._fall_back(batch, rows)
        fit, excluded = fit_clients(batch, self._settings.rate_spread)
        index = np.flatnonzero(fit)
        weights = np.zeros(rows.basis.capacity)
        if not index.size:
            return Combination(weights, status="stationary", excluded=excluded)
        self._reset = self._place_reference(rows.combine(batch.shares), batch, rows)
        present, absent = [rows.slots[k] for k in index], self._memory.place(self._absent, rows)
        rates = self._rates(batch, index, present, rows)
        slots, solution = present, self._solve(present, rates, rows)
        heeded = bool(absent) and self._harms(absent, present, solution, rows)
        if heeded:
            everybody = self._solve([*present, *absent], np.concatenate([rates, np.zeros(len(absent))]), rows)
            if everybody.status != "stationary":
                # the precision that is called for is that of the promise to those present
                slots = [*present, *absent]
                solution = replace(everybody, rank=solution.rank, condition=solution.condition)
        nothing = not solution.weights.any() and not rows.basis.squared_norm(self._reference_slot(rows))
        if nothing or solution.status == "stationary":
            return self._fall_back(batch, rows)
        weights[slots] = solution.weights
        weights[self._reference_slot(rows)] = 1.0
        notes = {"anchor_reset": float(self._reset)}
        if absent:
            notes |= {"absent": float(len(absent)), "absent_left_out": float(heeded and slots is present)}
        return describe(weights, solution, excluded, length=1.0, notes=notes)

    def _fall_back(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        found = self._one_sided.combine(batch, rows)
        return replace(found, notes={**found.notes, "retreat": 1.0})

    def _harms(self, absent: Sequence[int], present: Sequence[int], solution: GramSolution, rows: RoundRows) -> bool:
        """Whether the step of `solution` would raise a loss behind the rows `absent`."""
        products = rows.basis.gram([*absent, *present])[: len(absent), len(absent) :] @ solution.weights
        return bool((self._descent(absent, rows) + products < 0).any())

    def _reference_slot(self, rows: RoundRows) -> int:
        return rows.basis.capacity - self.reference_rows

    def _place_reference(self, mean_gradient: Tensor, batch: RoundBatch, rows: RoundRows) -> bool:
        """Put a reference along which the mean loss falls into its slot; whether the anchor was reset for that.

        Asked again in the same round, it does not go back to an anchor that was.
        """
        slot = self._reference_slot(rows)
        for anchor in (self._fallback,) if self._reset else (self._anchor, self._fallback):
            rows.basis.put(slot, anchor.propose(mean_gradient, rows, batch))
            descent = self._descent(rows.slots, rows)
            if np.isfinite(descent).all() and float(batch.shares @ descent) > 0:
                break
            rows.basis.drop(slot)
            self._anchor.forget()
        return anchor is self._fallback

    def _descent(self, slots: Sequence[int], rows: RoundRows) -> Float64Array:
        """How fast the losses behind rows fall along the reference, 0 where there is none."""
        return rows.basis.gram((*slots, self._reference_slot(rows)))[-1, :-1]

    def _rates(self, batch: RoundBatch, index: NDArray[np.intp], slots: Sequence[int], rows: RoundRows) -> Float64Array:
        """What the clients at `index` ask for: rates brought to the scale of the reference, or no more than a rise."""
        served = batch.served[index]
        rates = limit_spread(batch.rates[index], np.diag(rows.basis.gram(slots)), self._settings.rate_spread)
        if not served.all():
            descents = np.maximum(self._descent(slots, rows), 0)
            descent = float(descents[~served].mean()) or float(descents.mean())
            rates = self._settings.scale * descent * rates / rates[~served].mean()
        return np.where(served, -batch.slack[index], rates) if served.any() else np.asarray(rates)

    def _solve(self, slots: Sequence[int], rates: Float64Array, rows: RoundRows) -> GramSolution:
        return one_sided_weights(rows.basis.gram(slots), rates, offset=self._descent(slots, rows))

    def settle(self, step: Tensor, factor: float) -> None:
        """Hand the step on to the anchor's memory; a retreat ends with its round."""
        self._anchor.settle(step, factor)
        self._one_sided.settle(step, factor)
        self._retreated = False

    def retreat(self) -> bool:
        """Fall back to the one-sided step, and then to its own fallback."""
        if self._retreated:
            return self._one_sided.retreat()
        self._anchor.forget()
        self._retreated = True
        return True

    def disown(self, clients: Collection[int]) -> None:
        """Begin the reference anew where it was made of their rows too."""
        if clients:
            self._anchor.forget()
            self._memory.forget(clients)

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """The memories of the anchor and of absent clients, and whether it retreated."""
        memories = {**self._anchor.export_state(), **self._memory.export_state()}
        return {"retreated": np.array(self._retreated), **self._one_sided.export_state(), **memories}

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        self._retreated = bool(state["retreated"])
        self._one_sided.restore_state(state)
        self._anchor.restore_state(state)
        self._memory.restore_state(state)
