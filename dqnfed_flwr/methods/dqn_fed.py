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

from dqnfed_flwr.config import DqnFedSettings, Settings
from dqnfed_flwr.linalg.min_norm import two_sided_weights
from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.methods.absent import AbsentClients
from dqnfed_flwr.methods.anchored import AnchoredMethod
from dqnfed_flwr.methods.anchors import Anchor, GradientAnchor, LbfgsAnchor, MomentumAnchor, UpdateAnchor
from dqnfed_flwr.methods.rate_method import OneSided, TwoSided


def dqn_fed(run: Settings) -> Method:
    """The form that the settings of the run name."""
    settings = run.dqn_fed
    if settings.form == "two-sided":
        return TwoSided(settings, lambda g, d: two_sided_weights(g, d, ridge=settings.ridge, cutoff=settings.cutoff))
    if settings.form == "one-sided" or run.reference == "none":
        return OneSided(settings)
    absent = AbsentClients(settings.absent_rounds, run.sampled, run.clients)
    return AnchoredMethod(settings, _anchor(settings, run.reference), absent)


def _anchor(settings: DqnFedSettings, reference: str) -> Anchor:
    if reference == "momentum":
        return MomentumAnchor(settings.lr, settings.beta)
    if reference == "lbfgs":
        return LbfgsAnchor(settings.lr, settings.memory)
    if reference == "update":
        return UpdateAnchor()
    return GradientAnchor(settings.lr)
