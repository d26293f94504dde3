"""The forms of DQN-Fed: which rates a client is held to, and the step, from nothing or from that of another method."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.linalg.min_norm import GramSolution, one_sided_weights, two_sided_weights
from dqnfed_flwr.methods._base import GramMethod, Method, RoundRows, answer, left_out
from dqnfed_flwr.methods.absent import AbsentClients
from dqnfed_flwr.methods.dqn_fed.anchor import Anchor
from dqnfed_flwr.methods.dqn_fed.settings import DqnFedSettings
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.types import Combination, Extras, Float64Array, FloatArray, RoundBatch, Sees

if TYPE_CHECKING:
    from torch import Tensor


Solve = Callable[[Float64Array, Float64Array], GramSolution]
"""From a Gramian [K, K] and demands [K] to weights."""
MAX_INVERSE_CURVATURE = 1e12
"""Largest d_k / |g_k|^2 that is believed where rates are not held near their median."""


class TwoSided(GramMethod):
    """The paper's form: the rates as given, met exactly."""

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        self._spread = run.group_of(DqnFedSettings).rate_spread

    def weights(self, batch: RoundBatch) -> Combination:
        """Coefficients of the K rows, 0 for clients left out."""
        return weigh(batch, self._spread, two_sided_weights)


class OneSided(GramMethod):
    """grads @ step >= rates, where a client below its entitlement asks only not to rise above it.

    Where no such step exists, or no length of it suits all clients, the step with equal cosines is tried: along the
    shortest point of the convex hull of the unit gradients of those above their entitlement.
    """

    guaranteed, _remembered = True, ("fallback",)

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        self._spread, self._fallback = run.group_of(DqnFedSettings).rate_spread, 0

    def weights(self, batch: RoundBatch) -> Combination:
        """Coefficients of the K rows, 0 for clients left out."""
        if not self._fallback:
            found = weigh(batch, self._spread, one_sided_weights)
            if found.status != "stationary":
                return found
        return equal_cosines(batch, self._spread)

    def step_taken(self, step: object, factor: float) -> None:
        """The next round begins with the rates again."""
        self._fallback = 0

    def fall_back(self) -> bool:
        """Fall back to equal cosines, once a round."""
        self._fallback += 1
        return self._fallback == 1


def weigh(batch: RoundBatch, spread: float, solve: Solve) -> Combination:
    """Weights of the rows that can be held to a rate, with the rates held within `spread` of their median."""
    fit, excluded = fit_clients(batch, spread)
    rates = limit_spread(batch.rates[fit], np.diag(batch.gram)[fit], spread)
    served = batch.served[fit]
    if served.any() and not served.all() and solve is one_sided_weights:  # where all are, all may as well fall
        rates = np.where(served, -batch.slack[fit], rates)
    return _solved(batch, fit, rates, solve, excluded)


def equal_cosines(batch: RoundBatch, spread: float) -> Combination:
    """The shortest step with the same product with every unit gradient of those above their entitlement.

    It is the shortest point of the convex hull of these unit gradients, brought to a length: the direction of all whose
    smallest cosine with them is largest (MGDA on unit rows; Desideri 2012). Where all are below, of all clients.
    """
    fit, excluded = fit_clients(batch, spread)
    asking = fit & ~batch.served if (fit & ~batch.served).any() else fit
    norms = np.sqrt(np.diag(batch.gram)[asking])
    typical = float(np.median(batch.rates[asking] / norms)) if norms.size else 0.0
    found = _solved(batch, asking, typical * norms, one_sided_weights, excluded)
    return replace(found, notes={"equal_cosines": 1.0}) if norms.size else found


def _solved(
    batch: RoundBatch, asking: NDArray[np.bool_], demands: Float64Array, solve: Solve, excluded: dict[int, str]
) -> Combination:
    """The step that the `demands` [n] of the n clients in `asking` [K] ask for; none where there is no such client."""
    weights = np.zeros(len(batch.clients))
    if not asking.any():
        return Combination(weights, status="stationary", excluded=excluded)
    gram = batch.gram[np.ix_(asking, asking)]
    solution = solve(gram, demands)
    weights[asking] = solution.weights
    return answer(weights, solution, excluded, length=float(solution.weights @ gram @ solution.weights))


def fit_clients(batch: RoundBatch, spread: float) -> tuple[NDArray[np.bool_], dict[int, str]]:
    """Clients with a gradient and a positive, believable rate, as a mask [K]; the others, with the reason.

    Where rates are held near their median by a `spread`, none is too large.
    """
    squared_norms = np.diag(batch.gram)
    fit = (squared_norms > 0) & np.isfinite(batch.rates) & (batch.rates > 0)
    if not spread:
        fit &= batch.rates <= MAX_INVERSE_CURVATURE * squared_norms
    return fit, left_out(batch, fit)


def limit_spread(rates: Float64Array, squared_norms: Float64Array, spread: float) -> Float64Array:
    """Hold d_k / |g_k|^2, a client's mean inverse curvature, within the factor `spread` of the median over clients.

    `rates` are d~_k and `squared_norms` |g_k|^2, both positive [K]; a spread of 0 leaves the rates as they are. One
    secant pair tells little: its rates differ by up to 70-fold between clients, and the step then leans so far towards
    a few that the others allow hardly any length.
    """
    if not spread or not rates.size:
        return rates
    inverse = rates / squared_norms
    median = float(np.median(inverse))
    return np.asarray(np.clip(inverse, median / spread, median * spread) * squared_norms)


class AnchoredMethod(Method):
    """DQN-Fed around the step u_a of an anchor: min |u - u_a|^2 subject to grads @ u >= rates.

    Its dual is the one-sided problem with rates lowered by what the anchor already gives, u = u_a + weights @ grads.
    With rates 0 it is the projection of GEM (Lopez-Paz and Ranzato, NeurIPS 2017).

    Where the mean loss does not fall along u_a, the anchor's memory of earlier steps begins anew, and eta times the
    mean gradient takes its place for the round (note `anchor_reset`).

    With sampling, clients that took part in the last `absent-rounds` rounds and are absent now have a say as well:
    the newest gradient h that the server has of each asks for h . u >= 0. It is a gradient at an earlier model, so
    this keeps the step from undoing what others have just learnt, and promises them nothing. Where no step meets
    these conditions and those of the participants, the absent are left out of the round and counted.

    So it is where all are asked and a quorum below 1 does not wait for the slow. As their rows may never come in time,
    a late one asks for a rate, too, as that of those present is for their rows, h . u >= |h|^2 mean_k d_k / |g_k|^2.

    A client whose loss is below its entitlement e asks only for g_k . u >= -(e - f_k).

    Where no such step exists, or no length of it suits all (a noisy anchor does that to clients near their optimum),
    the method retreats for one round: the anchor begins anew and the step is that of `OneSided`.

    Slots: the participants, what the anchor's method needs, the anchor's step, rows of absent clients.
    """

    guaranteed, _remembered = True, ("retreated",)

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        settings = self._settings = run.group_of(DqnFedSettings)
        self._anchor = Anchor(run.anchor or run)
        self._one_sided = OneSided(run)
        shared = run.settings
        self._absent = AbsentClients(settings.absent_rounds, shared.sampled, shared.clients, shared.quorum)
        self._late_ask = shared.sampled >= shared.clients
        self.keeps_late = self._late_ask and self._absent.room > 0
        self._memories = (self._one_sided, self._anchor, self._absent)
        self._retreated = self._reset = False
        self._seen: tuple[RoundBatch, RoundRows] | None = None
        self.reference_rows = self._anchor.reference_rows + 1 + self._absent.room
        self.sees = Sees.PRODUCTS | Sees.SUM | self._anchor.method.sees | self._absent.sees

    @property
    def inner(self) -> Method:
        """The anchor's method."""
        return self._anchor.method.inner

    def extras(self, dim: int) -> Extras:
        """What the anchor needs."""
        return self._anchor.extras(dim)

    def extras_of(self, round_number: int, client: int, dim: int) -> Extras:
        """What the anchor needs of this client."""
        return self._anchor.extras_of(client, dim)

    def select(self, round_number: int, clients: tuple[int, ...]) -> tuple[int, ...]:
        """All of them train; the anchor chooses who sends a row for it."""
        self._anchor.choose(round_number, clients)
        return clients

    def directives(self, round_number: int, client: int) -> Mapping[str, float]:
        """What the anchor says to its local work."""
        return self._anchor.directives(round_number, client)

    def sends(self, round_number: int) -> Mapping[str, Tensor]:
        """Vectors that the anchor's local work needs."""
        return self._anchor.sends(round_number)

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Remember the rows, find those of clients that are absent now, and let the anchor see the round.

        A retreat needs no anchor, and the anchor has seen its round already.
        """
        self._reset = False
        self._absent.observe(batch, rows)
        self._seen = None if self._retreated else self._anchor.observe(batch, rows, 1 + self._absent.room)

    def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        """Coefficients of the K rows, of the anchor's step, and of the rows of absent clients."""
        if self._seen is None:
            return self._one_sided_step(batch, rows)
        fit, excluded = fit_clients(batch, self._settings.rate_spread)
        index, weights = np.flatnonzero(fit), np.zeros(rows.capacity)
        if not index.size:
            return Combination(weights, status="stationary", excluded=excluded)
        notes = self._place_reference(self._seen, batch, rows)
        present, absent = [rows.slots[k] for k in index], self._absent.place(rows)
        rates = self._rates(batch, index, present, rows)
        slots, solution = present, self._solve(present, rates, rows)
        demands = self._demands(rates, present, absent, rows)
        heeded = bool(absent) and self._falls_short(demands, absent, present, solution, rows)
        if heeded:
            for_all = self._solve([*present, *absent], np.concatenate([rates, demands]), rows)
            if for_all.status != "stationary":
                # the precision that is needed is that of the promise to those present
                slots = [*present, *absent]
                solution = replace(for_all, rank=solution.rank, condition=solution.condition)
        nothing = not solution.weights.any() and not rows.squared_norm(self._reference_slot(rows))
        if nothing or solution.status == "stationary":
            return self._one_sided_step(batch, rows)
        weights[slots] = solution.weights
        weights[self._reference_slot(rows)] = 1.0
        if absent:
            late = sum(item.late for item in self._absent.absent)
            left_out = float(heeded and slots is present)
            notes |= {"absent": float(len(absent)), "absent_late": float(late), "absent_left_out": left_out}
        return answer(weights, solution, excluded, notes=notes)

    def _one_sided_step(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        found = self._one_sided.combine(batch, rows)
        return replace(found, notes={**found.notes, "retreat": 1.0})

    def _demands(
        self, rates: Float64Array, present: Sequence[int], absent: Sequence[int], rows: RoundRows
    ) -> Float64Array:
        """How fast the losses behind the rows `absent` should fall along the step; 0 where they must not rise."""
        late = np.array([item.late for item in self._absent.absent], dtype=bool)
        if not self._late_ask or not late.any():
            return np.zeros(len(absent))
        asked = rates / np.diag(rows.gram(present))
        typical = float(asked[rates > 0].mean()) if (rates > 0).any() else 0.0
        return np.where(late, typical * np.diag(rows.gram(absent)), 0.0)

    def _falls_short(
        self,
        demands: Float64Array,
        absent: Sequence[int],
        present: Sequence[int],
        solution: GramSolution,
        rows: RoundRows,
    ) -> bool:
        """Whether the step of `solution` meets one of the `demands` of the rows `absent` not."""
        products = rows.gram([*absent, *present])[: len(absent), len(absent) :] @ solution.weights
        return bool((self._descent(absent, rows) + products < demands).any())

    def _reference_slot(self, rows: RoundRows) -> int:
        return rows.capacity - 1 - self._absent.room

    def _place_reference(
        self, seen: tuple[RoundBatch, RoundRows], batch: RoundBatch, rows: RoundRows
    ) -> dict[str, float]:
        """Put a step along which the mean loss falls into the slot of the anchor's; notes about it.

        It is the anchor's own, `seen` being the round as the anchor sees it. Where nobody sent a row for it, the mean
        gradient takes its place, and its memory stays (note `anchor_missing`). A second call in the same round does
        not go back to an anchor that was reset.
        """
        notes: dict[str, float] = {"anchor_reset": 0.0}
        if not self._reset and seen[0].clients:
            step, found = self._anchor.propose(*seen)
            notes |= found
            self._reset = not self._put(step, batch, rows)
        if self._reset:
            self._anchor.forget()
            notes["anchor_reset"] = 1.0
        elif not seen[0].clients:
            notes["anchor_missing"] = 1.0
        if self._reset or not seen[0].clients:
            self._put(self._row_lr * rows.combine(batch.shares), batch, rows)
        return notes

    def _put(self, step: Tensor, batch: RoundBatch, rows: RoundRows) -> bool:
        """Put a step into the slot of the anchor's, if the mean loss falls along it; whether that is so."""
        slot = self._reference_slot(rows)
        rows.put(slot, step)
        descent = self._descent(rows.slots, rows)
        falls = bool(np.isfinite(descent).all()) and float(batch.shares @ descent) > 0
        if not falls:
            rows.drop(slot)
        return falls

    def _descent(self, slots: Sequence[int], rows: RoundRows) -> Float64Array:
        """How fast the losses behind rows fall along the anchor's step, 0 where there is none."""
        return rows.gram((*slots, self._reference_slot(rows)))[-1, :-1]

    def _rates(self, batch: RoundBatch, index: NDArray[np.intp], slots: Sequence[int], rows: RoundRows) -> Float64Array:
        """What the clients at `index` ask for: rates brought to the scale of the anchor, or no more than a rise."""
        served = batch.served[index]
        rates = limit_spread(batch.rates[index], np.diag(rows.gram(slots)), self._settings.rate_spread)
        if not served.all():
            descents = np.maximum(self._descent(slots, rows), 0)
            descent = float(descents[~served].mean()) or float(descents.mean())
            rates = self._settings.scale * descent * rates / rates[~served].mean()
        return np.where(served, -batch.slack[index], rates) if served.any() else np.asarray(rates)

    def _solve(self, slots: Sequence[int], rates: Float64Array, rows: RoundRows) -> GramSolution:
        return one_sided_weights(rows.gram(slots), rates, offset=self._descent(slots, rows))

    def step_taken(self, step: Tensor, factor: float) -> None:
        """The anchor remembers the step; a retreat ends with its round."""
        self._anchor.step_taken(step, factor)
        self._one_sided.step_taken(step, factor)
        self._retreated = False

    def fall_back(self) -> bool:
        """Fall back to the one-sided step, and then to its own fallback."""
        if self._retreated:
            return self._one_sided.fall_back()
        self._anchor.forget()
        self._retreated = True
        return True

    def keep_late(self, client: int, round_number: int, now: int, read: Callable[[], FloatArray]) -> bool:
        """Among the rows of the absent."""
        return self._absent.keep_late(client, round_number, now, read)

    def disown(self, clients: Collection[int]) -> None:
        """Have the anchor and the memory of the absent forget them."""
        self._anchor.disown(clients)
        if clients:
            self._absent.forget(clients)
