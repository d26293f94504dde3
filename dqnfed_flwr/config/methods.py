"""Settings of the methods: one group a method that has any, see `docs/methods.md` for what they mean there.

eta is `local.lr` throughout: a gradient of a full batch counts as one local step of that rate.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from dqnfed_flwr.config._group import Group
from dqnfed_flwr.config.profiles import profile_of
from dqnfed_flwr.errors import ConfigError

CurvatureMatrix = Literal["hessian", "gauss-newton"]
ReferenceName = Literal["auto", "none", "gradient", "momentum", "lbfgs", "update"]


class DqnFedSettings(Group):
    """DQN-Fed: which step meets the rates."""

    form: Literal["two-sided", "one-sided", "anchored"] = Field("anchored", description="grads @ step = or >= rates")
    reference: ReferenceName = Field(
        "auto",
        description="anchor of the step; auto: lbfgs with full participation, else momentum; none: the one-sided form",
    )
    beta: float = Field(0.9, ge=0, lt=1, description="of the reference momentum")
    lr: float = Field(0.1, gt=0, description="eta of the mean gradient in the references")
    memory: int = Field(10, ge=1, le=100, description="pairs of the reference lbfgs")
    scale: float = Field(1.0, gt=0, description="c: rates over the reference's own mean descent (anchored)")
    rate_spread: float = Field(
        2.0,
        ge=0,
        description="hold d_k/|g_k|^2 within this factor, at least 1, of its median; 0 leaves the rates alone",
    )
    absent_rounds: int = Field(
        3,
        ge=0,
        description="rounds for which the last gradient of a client that is absent counts (anchored, with sampling)",
    )
    ridge: float = Field(0.0, ge=0, description="added to the unit-diagonal Gramian (two-sided)")
    cutoff: float = Field(1e-7, gt=0, lt=1, description="eigenvalues below cutoff * largest count as zero (two-sided)")

    @field_validator("rate_spread")
    @classmethod
    def _check_spread(cls, spread: float) -> float:
        if 0 < spread < 1:
            raise ValueError(f"found {spread:g}; give a factor of at least 1, or 0 to leave the rates alone")
        return spread


class MomentumSettings(Group):
    """The anchor `momentum` alone."""

    beta: float = Field(0.9, ge=0, lt=1, description="weight of the step before")


class ServerLbfgsSettings(Group):
    """The anchor `lbfgs` alone."""

    memory: int = Field(10, ge=1, le=100, description="pairs of the server's history")


class FedAvgMSettings(Group):
    """FedAvgM."""

    lr: float = Field(1.0, gt=0, description="server rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="beta")


class FedAdamSettings(Group):
    """FedAdam."""

    lr: float = Field(0.01, gt=0, description="server rate")
    beta1: float = Field(0.9, ge=0, lt=1, description="weight of the mean before")
    beta2: float = Field(0.99, ge=0, lt=1, description="weight of the mean square before")
    tau: float = Field(1e-3, gt=0, description="added to the root of the mean square")


class QFflSettings(Group):
    """q-FFL."""

    q: float = Field(0.1, ge=0, description="power of the loss; 0 is the plain mean")


class AflSettings(Group):
    """AFL."""

    gamma: float = Field(0.1, ge=0, description="rate of the clients' weights; 0 leaves them at the sample shares")


class TermSettings(Group):
    """TERM."""

    t: float = Field(1.0, ge=0, description="tilt; 0 is FedAvg")


class FedMgdaPlusSettings(Group):
    """FedMGDA+."""

    epsilon: float = Field(0.1, ge=0, le=1, description="how far a weight may lie from the sample share; 1 is MGDA")


class DittoSettings(Group):
    """Ditto."""

    weight: float = Field(1.0, ge=0, description="lambda, pull of the global model on the personal one")


class FedFvSettings(Group):
    """FedFV."""

    alpha: float = Field(0.1, ge=0, le=1, description="share of the clients, of highest loss, left unprojected")
    tau: int = Field(1, ge=0, le=100, description="rounds for which the gradients of absent clients count")


class FedMdfgSettings(Group):
    """FedMDFG."""

    angle: float = Field(
        11.25, gt=0, le=90, description="degrees between the losses and equal ones above which fairness is pursued"
    )
    search: int = Field(5, ge=0, le=20, description="s, the line search spans 2^s to 2^-s")
    beta: float = Field(1e-4, ge=0, lt=1, description="of the Armijo test in the line search")


class FedLfSettings(Group):
    """FedLF."""

    vanishing: float = Field(1e-5, gt=0, lt=1, description="a layer whose direction is shorter, relatively, is merged")


class FedHealSettings(Group):
    """FedHEAL."""

    threshold: float = Field(0.3, ge=0, le=1, description="tau, smallest sign share with which a coordinate is kept")
    beta: float = Field(0.4, ge=0, le=1, description="weight of the newest round in the running shares")


class FedNlSettings(Group):
    """FedNL."""

    form: Literal["exact", "last-layer", "diagonal"] = Field(
        "last-layer", description="part of the Hessian that is learned; exact up to 2,000 parameters"
    )
    compressor: Literal["rank", "top"] = Field("rank", description="Rank-R or Top-K of the correction")
    size: int = Field(1, ge=1, description="R, or K in units of D")
    alpha: float = Field(1.0, gt=0, le=1, description="rate of the Hessian learning")
    option: Literal["projection", "shift"] = Field("shift", description="eigenvalues cut at mu, or error added")
    mu: float = Field(1e-3, gt=0, description="smallest eigenvalue (projection)")
    fresh: bool = Field(
        False, description="step with the Hessians as corrected in the round, not before; always so with sampling"
    )
    probes: int = Field(1, ge=1, description="random estimates a round (diagonal)")
    damping: float = Field(0.5, ge=0, description="ridge on the learned Hessian (last-layer)")


class FedNewSettings(Group):
    """FedNew."""

    form: Literal["exact", "cg"] = Field("cg", description="dense Hessians, or conjugate gradients on products")
    alpha: float = Field(0.1, ge=0, description="ridge on the Hessian")
    rho: float = Field(0.1, gt=0, description="penalty of the disagreement")
    refresh: int = Field(1, ge=0, description="rounds between Hessians; 0 keeps the first (exact)")
    bits: int = Field(0, ge=0, le=16, description="quantisation of the message (Q-FedNew); 0 for none")
    iterations: int = Field(20, ge=1, description="most of conjugate gradients (cg)")
    tolerance: float = Field(0.01, ge=0, lt=1, description="relative residual at which they end (cg); 0 for rounding")
    matrix: CurvatureMatrix = Field("gauss-newton", description="that H_k stands for (cg); networks need gauss-newton")


class LocalNewtonSettings(Group):
    """LocalNewton, GIANT."""

    solver: Literal["cg", "lbfgs"] = Field("cg", description="how H_k^-1 g_k is had: conjugate gradients, or L-BFGS")
    iterations: int = Field(20, ge=1, description="most of conjugate gradients (cg)")
    tolerance: float = Field(0.01, ge=0, lt=1, description="relative residual at which they end (cg); 0 for rounding")
    damping: float = Field(0.1, ge=0, description="ridge on the Hessian (cg)")
    matrix: CurvatureMatrix = Field("gauss-newton", description="that H_k stands for (cg); networks need gauss-newton")


class PropFairSettings(Group):
    """PropFair."""

    bound: float = Field(2.0, gt=0, description="M, the utility of a client is M - F")
    epsilon: float = Field(0.2, gt=0, description="utility below which the logarithm gives way to its tangent")


class GiFairSettings(Group):
    """GiFair."""

    strength: float = Field(1.0, ge=0, le=1, description="lambda over its bound min p_k / (K - 1)")


class VRedSettings(Group):
    """VRed."""

    beta: float = Field(0.1, ge=0, description="weight of the losses' variance")


class SemiVRedSettings(Group):
    """Semi-VRed."""

    beta: float = Field(0.1, ge=0, description="weight of the losses' semi-variance")


class AdaFedSettings(Group):
    """AdaFed."""

    gamma: float = Field(1.0, ge=0, description="power of the loss in a client's rate")


class FedCorrSettings(Group):
    """FedCorr."""

    last: str = Field("fedavg", description="the method of stage 3; its own settings count")
    preprocessing: int = Field(5, ge=1, description="T1, passes over all clients in stage 1")
    finetuning: int = Field(10, ge=0, description="rounds of stage 2, on clean clients")
    relabel: float = Field(0.5, ge=0, le=1, description="share of the samples seen as noisy that is relabelled")
    confidence: float = Field(0.5, ge=0, le=1, description="smallest confidence of a new label")
    beta: float = Field(5.0, ge=0, description="weight of the adaptive proximal term")
    mixup: float = Field(1.0, ge=0, description="parameter of the beta distribution of mixup; 0 for none")
    clean: float = Field(0.1, ge=0, le=1, description="estimated noise up to which a client counts as clean")

    @field_validator("last")
    @classmethod
    def _check_last(cls, last: str) -> str:
        if last == "fedcorr":
            raise ValueError("found 'fedcorr'; the last stage needs a method of another name, such as fedavg")
        try:
            profile_of(last)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return last


class KrumSettings(Group):
    """Krum and Multi-Krum."""

    byzantine: int = Field(1, ge=0, description="f, clients that may be hostile")
    keep: int = Field(1, ge=1, description="m, rows that are averaged; 1 is Krum")


class TrimmedMeanSettings(Group):
    """Trimmed mean."""

    share: float = Field(0.2, ge=0, lt=0.5, description="beta, share of the values cut off at either end")
