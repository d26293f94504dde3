"""DQN-Fed: one step along which every client's loss falls, in proportion to its own Newton step.

Hamidi and Ye, "Distributed Quasi-Newton Method for Fair and Fast Federated Learning", TMLR 2025: target (5), (6),
direction (7), (8), (12), length (17).

The three forms differ in how the rates d~_k bind:

- `two-sided`, the paper's: grads @ step = rates. (7), (8), (12), (17) together are its minimum-norm solution
  step = grads^T gram^-1 rates, with eta^t = |step|^2.
- `one-sided`: grads @ step >= rates. A client may fall faster than its rate, never slower.
- `anchored`: the step nearest to a reference step that meets grads @ step >= rates, where the rates keep their
  proportions and take their scale from the reference's own mean descent.

Deviations from the paper: rates are held within a factor of their median relative to |g_k|^2 (`rate-spread`, 0 for
the paper's); linearly dependent gradients are allowed; a client with a zero gradient or a rate that is not positive is
left out of the round and counted; the length is left to the step rule (`newton` gives (17)); with sampling, the
anchored form may heed clients of earlier rounds (`absent-rounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import field_validator

from dqnfed_flwr.linalg.min_norm import GramSolution, one_sided_weights, two_sided_weights
from dqnfed_flwr.methods._base import GramMethod, Method, RoundRows, State, answer, left_out
from dqnfed_flwr.methods.absent import AbsentClients
from dqnfed_flwr.methods.anchors import Anchor, GradientAnchor, LbfgsAnchor, MomentumAnchor, UpdateAnchor
from dqnfed_flwr.schema.group import Group, Reads, own
from dqnfed_flwr.schema.run import BLIND, GRADIENTS, Profile, RunSettings
from dqnfed_flwr.schema.work import GRADIENT, LBFGS
from dqnfed_flwr.types import Combination, Extras, Float64Array, RoundBatch

if TYPE_CHECKING:
    from torch import Tensor

ReferenceName = Literal["auto", "none", "gradient", "momentum", "lbfgs", "update"]
Solve = Callable[[Float64Array, Float64Array], GramSolution]
"""From a Gramian [K, K] and demands [K] to weights."""
MAX_INVERSE_CURVATURE = 1e12
"""Largest d_k / |g_k|^2 that is believed where rates are not held near their median."""


def anchored(run: RunSettings) -> bool:
    """Whether a run of DQN-Fed has the anchored form, with an anchor."""
    return run.group_of(DqnFedSettings).form == "anchored" and reference_of(run) != "none"


def reference_of(run: RunSettings) -> ReferenceName:
    """The anchor, with `auto` resolved: with sampling, a history of mean gradients would mix different clients.

    Where clients may lie, it would mix what was set aside with what was not.
    """
    own_settings = run.group_of(DqnFedSettings)
    if own_settings.reference != "auto":
        return own_settings.reference
    doubted = run.guarantee.tolerate and run.rule == "probed"
    return "lbfgs" if run.sampled >= run.clients and not doubted else "momentum"


def _refers_to(anchor: ReferenceName) -> Reads:
    """Where the step is anchored, and by this anchor."""
    return lambda run: anchored(run) and reference_of(run) == anchor


def _rates_differ(run: RunSettings) -> bool:
    """Whether rates are more than lr times the squared lengths of the rows."""
    passes = run.work is LBFGS and run.local.epochs > 1
    return passes or (run.work in GRADIENTS and run.curvature.kind != "none")


def _two_sided(run: RunSettings) -> bool:
    return run.group_of(DqnFedSettings).form == "two-sided"


class DqnFedSettings(Group):
    """DQN-Fed: which step meets the rates."""

    form: Literal["two-sided", "one-sided", "anchored"] = own("anchored", "grads @ step = or >= rates")
    reference: ReferenceName = own(
        "auto",
        "anchor of the step; auto: lbfgs with full participation, else momentum; none: the one-sided form",
        read=lambda run: run.group_of(DqnFedSettings).form == "anchored",
    )
    beta: float = own(0.9, "of the reference momentum", read=_refers_to("momentum"), ge=0, lt=1)
    lr: float = own(0.1, "eta of the mean gradient in the references", read=anchored, gt=0)
    memory: int = own(10, "pairs of the reference lbfgs", read=_refers_to("lbfgs"), ge=1, le=100)
    scale: float = own(1.0, "c: rates over the reference's own mean descent (anchored)", read=anchored, gt=0)
    rate_spread: float = own(
        2.0,
        "hold d_k/|g_k|^2 within this factor, at least 1, of its median; 0 leaves the rates alone",
        read=_rates_differ,
        ge=0,
    )
    absent_rounds: int = own(
        3,
        "rounds for which the last gradient of a client that is absent counts (anchored, with sampling)",
        read=lambda run: anchored(run) and run.sampled < run.clients,
        ge=0,
    )
    ridge: float = own(0.0, "added to the unit-diagonal Gramian (two-sided)", read=_two_sided, ge=0)
    cutoff: float = own(
        1e-7, "eigenvalues below cutoff * largest count as zero (two-sided)", read=_two_sided, gt=0, lt=1
    )

    @field_validator("rate_spread")
    @classmethod
    def _check_spread(cls, spread: float) -> float:
        if 0 < spread < 1:
            raise ValueError(f"found {spread:g}; give a factor of at least 1, or 0 to leave the rates alone")
        return spread


def dqn_fed(run: RunSettings) -> Method:
    """The form that the settings of the run name."""
    if anchored(run):
        return AnchoredMethod(run)
    return TwoSided(run) if _two_sided(run) else OneSided(run)


def _anchor(settings: DqnFedSettings, reference: ReferenceName) -> Anchor:
    if reference == "momentum":
        return MomentumAnchor(settings.lr, settings.beta)
    if reference == "lbfgs":
        return LbfgsAnchor(settings.lr, settings.memory)
    if reference == "update":
        return UpdateAnchor()
    return GradientAnchor(settings.lr)


class TwoSided(GramMethod):
    """The paper's form: the rates as given, met exactly."""

    def __init__(self, run: RunSettings) -> None:
        super().__init__(run)
        settings = run.group_of(DqnFedSettings)
        self._spread = settings.rate_spread
        self._solve = partial(two_sided_weights, ridge=settings.ridge, cutoff=settings.cutoff)

    def weights(self, batch: RoundBatch) -> Combination:
        """Coefficients of the K rows, 0 for clients left out."""
        return weigh(batch, self._spread, self._solve)


class OneSided(GramMethod):
    """grads @ step >= rates, where a client below its entitlement asks only not to rise above it.

    Where no such step exists, or no length of it suits all clients, the step with equal cosines is tried: along the
    shortest point of the convex hull of the unit gradients of those above their entitlement.
    """

    guaranteed = True

    def __init__(self, run: RunSettings) -> None:
        super().__init__(run)
        self._spread, self._fallbacks = run.group_of(DqnFedSettings).rate_spread, 0

    def weights(self, batch: RoundBatch) -> Combination:
        """Coefficients of the K rows, 0 for clients left out."""
        if not self._fallbacks:
            found = weigh(batch, self._spread, one_sided_weights)
            if found.status != "stationary":
                return found
        return equal_cosines(batch, self._spread)

    def step_taken(self, step: object, factor: float) -> None:
        """The next round begins with the rates again."""
        self._fallbacks = 0

    def fall_back(self) -> bool:
        """Fall back to equal cosines, once a round."""
        self._fallbacks += 1
        return self._fallbacks == 1

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """How often it has fallen back in this round."""
        return {"fallback": np.array(self._fallbacks)}

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        self._fallbacks = int(state.get("fallback", 0))


class AnchoredMethod(Method):
    """DQN-Fed around a reference step: min |u - u_ref|^2 subject to grads @ u >= rates.

    Its dual is the one-sided problem with rates lowered by what the reference already gives,
    u = u_ref + weights @ grads.

    With sampling, clients that took part in the last `absent-rounds` rounds and are absent now have a say as well:
    the newest gradient h that the server has of each asks for h . u >= 0. It is a gradient at an earlier model, so
    this keeps the step from undoing what others have just learnt, and promises them nothing. Where no step meets
    these conditions and those of the participants, the absent are left out of the round and counted.

    A client whose loss is below its entitlement e asks only for g_k . u >= -(e - f_k).

    Where no such step exists, or no length of it suits all (a noisy reference does that to clients near their
    optimum), the method retreats for one round: the anchor starts anew and the step is that of `OneSided`.

    The reference takes the slot after those of the participants, rows of absent clients the last ones.
    """

    guaranteed = True

    def __init__(self, run: RunSettings) -> None:
        super().__init__(run)
        settings = self._settings = run.group_of(DqnFedSettings)
        self._anchor, self._plain_anchor = _anchor(settings, reference_of(run)), GradientAnchor(settings.lr)
        self._one_sided = OneSided(run)
        self._absent = AbsentClients(settings.absent_rounds, run.sampled, run.clients)
        self._memories = (self._one_sided, self._anchor, self._absent)
        self._fell_back = self._reset = False
        self.reference_rows = 1 + self._absent.room

    def extras(self, dim: int) -> Extras:
        """What the anchor needs."""
        return self._anchor.extras(dim)

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Remember the rows, and find those of clients that are absent now."""
        self._reset = False
        self._absent.observe(batch, rows)

    def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        """Coefficients of the K rows, of the reference, and of the rows of absent clients."""
        if self._fell_back:
            return self._one_sided_step(batch, rows)
        fit, excluded = fit_clients(batch, self._settings.rate_spread)
        index, weights = np.flatnonzero(fit), np.zeros(rows.basis.capacity)
        if not index.size:
            return Combination(weights, status="stationary", excluded=excluded)
        self._reset = self._place_reference(rows.combine(batch.shares), batch, rows)
        present, absent = [rows.slots[k] for k in index], self._absent.place(rows)
        rates = self._rates(batch, index, present, rows)
        slots, solution = present, self._solve(present, rates, rows)
        heeded = bool(absent) and self._harms(absent, present, solution, rows)
        if heeded:
            for_all = self._solve([*present, *absent], np.concatenate([rates, np.zeros(len(absent))]), rows)
            if for_all.status != "stationary":
                # the precision that is needed is that of the promise to those present
                slots = [*present, *absent]
                solution = replace(for_all, rank=solution.rank, condition=solution.condition)
        nothing = not solution.weights.any() and not rows.basis.squared_norm(self._reference_slot(rows))
        if nothing or solution.status == "stationary":
            return self._one_sided_step(batch, rows)
        weights[slots] = solution.weights
        weights[self._reference_slot(rows)] = 1.0
        notes = {"anchor_reset": float(self._reset)}
        if absent:
            notes |= {"absent": float(len(absent)), "absent_left_out": float(heeded and slots is present)}
        return answer(weights, solution, excluded, notes=notes)

    def _one_sided_step(self, batch: RoundBatch, rows: RoundRows) -> Combination:
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

        A second call in the same round does not go back to an anchor that was reset.
        """
        slot = self._reference_slot(rows)
        for anchor in (self._plain_anchor,) if self._reset else (self._anchor, self._plain_anchor):
            rows.basis.put(slot, anchor.propose(mean_gradient, rows, batch))
            descent = self._descent(rows.slots, rows)
            if np.isfinite(descent).all() and float(batch.shares @ descent) > 0:
                break
            rows.basis.drop(slot)
            self._anchor.forget()
        return anchor is self._plain_anchor

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

    def step_taken(self, step: Tensor, factor: float) -> None:
        """The anchor remembers the step; a retreat ends with its round."""
        self._anchor.step_taken(step, factor)
        self._one_sided.step_taken(step, factor)
        self._fell_back = False

    def fall_back(self) -> bool:
        """Fall back to the one-sided step, and then to its own fallback."""
        if self._fell_back:
            return self._one_sided.fall_back()
        self._anchor.forget()
        self._fell_back = True
        return True

    def disown(self, clients: Collection[int]) -> None:
        """Begin the reference anew where it was made of their rows too."""
        if clients:
            self._anchor.forget()
            self._absent.forget(clients)

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """The memories, and whether it retreated."""
        return {"retreated": np.array(self._fell_back), **super().export_state()}

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        self._fell_back = bool(state["retreated"])
        super().restore_state(state)


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


def _faults(run: RunSettings) -> Iterator[str]:
    if run.group_of(DqnFedSettings).form == "anchored" and run.work is not GRADIENT:
        yield (
            "local.work: the anchored form holds every client to its true gradient at the received model, found "
            f"{run.work.name!r}; use gradient or auto, or dqn-fed.form two-sided or one-sided"
        )


METHODS = (
    Profile(
        name="dqn-fed",
        title="DQN-Fed",
        settings=DqnFedSettings,
        build=dqn_fed,
        works=GRADIENTS,
        rules=("probed", *BLIND),
        faults=_faults,
        reads_curvature=lambda run: True,
        wants_update=_refers_to("update"),
    ),
)
