"""DQN-Fed: one step along which every client's loss falls, in proportion to its own Newton step.

Hamidi and Ye, "Distributed Quasi-Newton Method for Fair and Fast Federated Learning", TMLR 2025: target (5), (6),
direction (7), (8), (12), length (17).

The three forms differ in how the rates d~_k bind:

- `two-sided`, the paper's: grads @ step = rates. (7), (8), (12), (17) together are its minimum-norm solution
  step = grads^T gram^-1 rates, with eta^t = |step|^2.
- `one-sided`: grads @ step >= rates. A client may fall faster than its rate, never slower.
- `anchored`: the step nearest to that of another method, the anchor, that meets grads @ step >= rates, where the rates
  keep their proportions and take their scale from the anchor's own mean descent.

Deviations from the paper: rates are held within a factor of their median relative to |g_k|^2 (`rate-spread`, 0 for
the paper's); linearly dependent gradients are allowed; a client with a zero gradient or a rate that is not positive is
left out of the round and counted; the length is left to the step rule (`newton` gives (17)); with sampling, the
anchored form may heed clients of earlier rounds (`absent-rounds`).
"""

from __future__ import annotations

from collections.abc import Callable

from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.methods.dqn_fed.anchored import AnchoredMethod, OneSided, TwoSided
from dqnfed_flwr.methods.dqn_fed.settings import NAME, DqnFedSettings, anchor_run, faults, left_to_passes
from dqnfed_flwr.schema.run import GRADIENTS, Profile, RunSettings

_FORMS: dict[str, Callable[[RunSettings], Method]] = {
    "two-sided": TwoSided,
    "one-sided": OneSided,
    "anchored": AnchoredMethod,
}


def dqn_fed(run: RunSettings) -> Method:
    """The form that the settings of the run name."""
    return _FORMS[run.group_of(DqnFedSettings).form](run)


def _variant(run: RunSettings) -> str:
    """The name in tables, with the anchor where the settings name one."""
    anchor = anchor_run(run)
    if anchor is None or run.group_of(DqnFedSettings).anchor != anchor.method:
        return TITLE
    return f"{TITLE} over {anchor.title.removesuffix(NO_GUARANTEE)}"


TITLE, NO_GUARANTEE = "DQN-Fed", " (no guarantee)"
METHODS = (
    Profile(
        name=NAME,
        title=TITLE,
        settings=DqnFedSettings,
        build=dqn_fed,
        works=GRADIENTS,
        one_gradient="its guarantee holds along the clients' true gradients at the model that they received",
        rule="probed",
        variant=_variant,
        keys_in_title=(f"{NAME}.anchor",),
        faults=faults,
        reads_curvature=lambda run: True,
        anchor=anchor_run,
        anchor_work="dqnfed_flwr.methods.dqn_fed.client:AnchoredWork",
        follows_passes=left_to_passes,
        no_anchor="a step of DQN-Fed is changed already",
    ),
)
