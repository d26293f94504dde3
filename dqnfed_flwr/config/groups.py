"""Settings that every method shares: data, local work, curvature, step rules."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dqnfed_flwr.config._group import Group, Numbers

StepRuleName = Literal["auto", "newton", "fixed", "clipped", "probed", "search"]
PartitionName = Literal["iid", "shards", "dirichlet", "pathological", "one-class", "groups", "file"]
LocalWork = Literal["auto", "gradient", "sgd", "lbfgs"]


class SplitSettings(Group):
    """How the data are dealt out to the clients."""

    alpha: float = Field(0.5, gt=0, description="Dirichlet concentration beta; small is skewed")
    min_samples: int = Field(10, ge=2, description="fewest samples of a client (dirichlet)")
    shards: int = Field(2, ge=1, description="shards a client (shards)")
    classes: int = Field(2, ge=1, description="classes a client (pathological)")
    merge: Numbers = Field("", description="classes of each client, such as 1,2,2,2,3; empty for one each (one-class)")
    groups: int = Field(0, ge=0, description="natural groups used, drawn at random; 0 for every one (groups)")
    min_group_samples: int = Field(
        0, ge=0, description="fewest samples of a natural group that is used, training and test together (groups)"
    )
    samples: int = Field(0, ge=0, description="training samples used in all, 0 for every one")
    only_classes: Numbers = Field(
        "", description="classes used, such as 0,2,6, numbered anew in this order; empty for all"
    )
    test_fraction: float = Field(
        0.2, gt=0, lt=1, description="share of a client's samples that it tests on, where a set has no test part"
    )
    validation_fraction: float = Field(0.0, ge=0, lt=1, description="share of a client's training samples kept apart")


class NoiseSettings(Group):
    """Wrong labels among those trained on."""

    kind: Literal["none", "symmetric", "pair"] = Field(
        "none", description="no noise, any class in place of the right one, or the next class"
    )
    clients: float = Field(0.5, ge=0, le=1, description="rho, probability that a client is noisy")
    level: float = Field(
        0.5, ge=0, le=1, description="tau: the share of labels that a noisy client has replaced is uniform from it to 1"
    )


class LocalSettings(Group):
    """Work of a client in one round."""

    work: LocalWork = Field("auto", description="gradient, epochs of SGD, or L-BFGS passes; auto asks the method")
    epochs: int = Field(1, ge=1, description="local passes E")
    batch_size: int = Field(0, ge=0, description="mini-batch of local SGD, 0 for the full batch")
    gradient_batch: int = Field(
        0, ge=0, description="samples drawn for a gradient (work gradient and lbfgs), 0 for all; probed needs all"
    )
    lr: float = Field(0.1, gt=0, description="local learning rate; also the rate's scale when no curvature is known")
    momentum: float = Field(0.0, ge=0, lt=1, description="of local SGD")
    decay: float = Field(1.0, gt=0, le=1, description="the rate of local SGD in round t is lr * decay^(t-1)")
    proximal: float = Field(0.0, ge=0, description="mu, pull of local SGD back to the received model (FedProx)")
    gradient: Literal["final", "pseudo"] = Field(
        "final", description="after E L-BFGS passes: gradient at the end, or the displacement over the local rate"
    )
    chunk: int = Field(0, ge=0, description="samples a forward pass, bounding memory; 0 chooses")
    threads: int = Field(0, ge=0, description="torch threads of a client, 0 for all cores")
    together: int = Field(
        0,
        ge=0,
        le=1000,
        description="clients of the in-process engine whose gradients one pass computes (work gradient and lbfgs), 0 "
        "for each by itself; other last bits",
    )


class CurvatureSettings(Group):
    """The rate d~_k = g_k . B_k g_k (18)."""

    kind: Literal["none", "secant", "hvp"] = Field(
        "none", description="pairs from successive models, from Hessian-vector products, or d~_k = lr |g_k|^2"
    )
    previous: Literal["cached", "recomputed"] = Field("cached", description="gradient at the pair's older model")
    memory: int = Field(1, ge=1, le=100, description="pairs kept, m")
    filter: float = Field(1e-8, ge=0, lt=1, description="a pair is kept if s.y > filter |s| |y|")
    damping: bool = Field(False, description="Powell damping in place of the filter")


MAX_FALL_EACH = 0.05
"""With sampling, the share of the participants' mean loss that a step may promise to take, for each of them: the fewer
there are, the less they speak for the others."""


class StepSettings(Group):
    """How far to go along the method's step."""

    lr: float = Field(1.0, gt=0, description="eta of the rule fixed")
    decay: float = Field(1.0, gt=0, le=1, description="eta_t = lr * decay^(t-1) (fixed)")
    radius: float = Field(1.0, gt=0, description="longest step |theta^{t+1} - theta^t| (clipped)")
    armijo: float = Field(1e-4, ge=0, lt=1, description="beta of the acceptance test (probed)")
    start: float = Field(1.0, gt=0, description="first factor alpha (probed)")
    max_factor: float = Field(1024.0, gt=0, description="largest factor alpha (probed)")
    max_fall: float = Field(
        0.0,
        ge=0,
        description="largest share of the participants' mean loss that the step may promise to take; 0 chooses: "
        f"{MAX_FALL_EACH} for each participant where clients are sampled, else any (probed)",
    )
    min_move: float = Field(
        1e-7, gt=0, description="smallest |alpha step| over |theta| before the model counts as stationary (probed)"
    )
    halvings: int = Field(6, ge=1, le=40, description="rungs below the candidate in one exchange (probed)")
    ladder: Literal["auto", "always", "after-miss"] = Field(
        "auto",
        description="when clients are sent the step, to find the rung that suits them: with every candidate, or, for "
        "less traffic and sometimes an exchange more, once one was turned down; auto: always, with models of two "
        "million parameters or more in round 1 and after a miss (probed)",
    )
    grow_every: int = Field(
        3,
        ge=0,
        description="probe twice the factor every so many rounds, and in each after a miss that cost more than a "
        "halving; 0 never (probed)",
    )
    on_stationary: Literal["stop", "stay", "relax"] = Field(
        "stop",
        description="no common descent step: end the run (with sampling: skip the round), skip the round, or take the "
        "step that lowers the mean loss",
    )
