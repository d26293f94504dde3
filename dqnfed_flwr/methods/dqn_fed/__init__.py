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
left out of the round and counted; the length is left to the step rule (`newton` gives (17)); with sampling or a
quorum, the anchored form may heed clients of earlier rounds (`absent-rounds`).
"""

from __future__ import annotations

from collections.abc import Iterator

from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.methods.dqn_fed.anchored import AnchoredMethod, OneSided, TwoSided
from dqnfed_flwr.methods.dqn_fed.masked import ANCHORS, MaskedAnchored
from dqnfed_flwr.methods.dqn_fed.settings import NAME, DqnFedSettings, anchored, choose_anchor
from dqnfed_flwr.schema.plan import GRADIENTS, AnchorChoice, Profile, RunPlan
from dqnfed_flwr.schema.run import AUTO, RunSettings
from dqnfed_flwr.schema.work import GENERAL, GRADIENT

_FORMS: dict[str, type[Method]] = {"two-sided": TwoSided, "one-sided": OneSided, "anchored": AnchoredMethod}


def dqn_fed(run: RunPlan) -> Method:
    """The form that the settings of the run name."""
    if run.masked and run.anchor is not None:
        return MaskedAnchored(run)
    return _FORMS[run.group_of(DqnFedSettings).form](run)


class _DqnFed(Profile):
    keys_in_title = (f"{NAME}.anchor",)
    around = "dqnfed_flwr.methods.dqn_fed.client:AnchoredWork"

    def title_of(self, run: RunPlan) -> str:
        """With the anchor where the settings name one."""
        if run.anchor is None or run.group_of(DqnFedSettings).anchor == AUTO:
            return self.title
        return f"{self.title} over {run.anchor.title.removesuffix(NO_GUARANTEE)}"

    def reads_curvature(self, run: RunPlan) -> bool:
        return True

    def follows_passes(self, run: RunPlan) -> bool:
        """Where it is left to local passes what the anchor is."""
        return anchored(run) and choose_anchor(run, passes=True) != choose_anchor(run, passes=False)

    def shortens(self, run: RunPlan) -> bool:
        """Where the anchored step is tested; docs/scale.md has the runs."""
        return anchored(run) and run.rule.judged_by == "test"

    def anchor(self, run: RunPlan) -> AnchorChoice | None:
        if not anchored(run):
            return None
        local = run.settings.local
        method, work = choose_anchor(run, passes=local.epochs > 1 or local.batch_size > 0)
        return AnchorChoice(method, work, f"{NAME}.anchor")

    def faults(self, run: RunPlan) -> Iterator[str]:
        anchor = run.anchor
        if anchor is None:
            return
        if run.work is not GRADIENT:
            yield (
                f"local.work: the anchored form holds every client to its true gradient at the received model, found "
                f"{run.work.name!r}; use gradient or auto, or {NAME}.form two-sided or one-sided"
            )
        profile = anchor.method
        if run.masked and (profile.name not in ANCHORS or anchor.work is not GRADIENT):
            yield (
                f"{NAME}.anchor: found {profile.name!r} with work {anchor.work.name!r}, which needs more than the one "
                f"sum that clients give where privacy.mode is masked; use auto, or {' or '.join(ANCHORS)} with "
                f"{NAME}.anchor-work gradient"
            )
            return
        if why := unfit_as_anchor(profile, run.settings):
            yield f"{NAME}.anchor: found {profile.name!r}, which cannot be one: {why}"
            return
        works, found = [work.name for work in profile.works], anchor.work.name
        if found not in works:
            yield f"{NAME}.anchor-work: {profile.name} works with {' or '.join(works)}, found {found!r}; use auto"
            return
        share = run.group_of(DqnFedSettings).anchor_share
        if share < 1 and anchor.work.name not in GENERAL:
            yield f"{NAME}.anchor-share: found {share:g}; {profile.name} needs what all clients of a round send; use 1"
        yield from profile.faults(anchor)


def unfit_as_anchor(profile: Profile, settings: RunSettings) -> str:
    """Why no other method may change the step of this one; empty where one may."""
    if profile.name == NAME:
        return "a step of DQN-Fed is changed already"
    if profile.last_stage(settings):
        return "it is made of stages"
    return "its models are the clients' own, and would not be reported" if profile.personal else ""


NO_GUARANTEE = " (no guarantee)"
METHODS = (
    _DqnFed(
        name=NAME,
        title="DQN-Fed",
        settings=DqnFedSettings,
        build=dqn_fed,
        works=GRADIENTS,
        one_gradient="its guarantee holds along the clients' true gradients at the model that they received",
        rule="probed",
    ),
)
