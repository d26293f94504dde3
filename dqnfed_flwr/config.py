"""Settings of a run: one set of keys for YAML files, `[tool.flwr.app.config]` and `--run-config`.

Keys are kebab-case; groups are nested mappings or dotted keys (`local: {epochs: 2}` equals `local.epochs: 2`).
`Settings.from_mapping` reads both, and turns every fault into a `ConfigError` that names the key, what was found and
what is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dqnfed_flwr.errors import ConfigError

Scalar = str | int | float | bool
MethodName = Literal["dqn-fed", "fedavg", "fedsgd", "mgda"]
StepRuleName = Literal["auto", "newton", "fixed", "clipped", "probed"]
PartitionName = Literal["iid", "shards", "dirichlet", "pathological", "one-class", "groups", "file"]
ReferenceName = Literal["auto", "none", "gradient", "momentum", "lbfgs", "update"]
LocalWork = Literal["auto", "gradient", "sgd", "lbfgs"]


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class _Group(BaseModel):
    """Base of all groups: frozen, unknown keys refused, types not coerced, kebab-case names outside."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=_kebab, validate_by_name=True, validate_by_alias=True
    )


class SplitSettings(_Group):
    """How the data are dealt out to the clients."""

    alpha: float = Field(0.5, gt=0, description="Dirichlet concentration beta; small is skewed")
    min_samples: int = Field(10, ge=2, description="fewest samples of a client (dirichlet)")
    shards: int = Field(2, ge=1, description="shards a client (shards)")
    classes: int = Field(2, ge=1, description="classes a client (pathological)")
    samples: int = Field(0, ge=0, description="training samples used in all, 0 for every one")
    test_fraction: float = Field(
        0.2, gt=0, lt=1, description="share of a client's samples that it tests on, where a set has no test part"
    )
    validation_fraction: float = Field(0.0, ge=0, lt=1, description="share of a client's training samples kept apart")


class LocalSettings(_Group):
    """Work of a client in one round."""

    work: LocalWork = Field("auto", description="gradient, epochs of SGD, or L-BFGS passes; auto asks the method")
    epochs: int = Field(1, ge=1, description="local passes E")
    batch_size: int = Field(0, ge=0, description="mini-batch, 0 for the full batch")
    lr: float = Field(0.1, gt=0, description="local learning rate; also the rate's scale when no curvature is known")
    momentum: float = Field(0.0, ge=0, lt=1, description="of local SGD")
    gradient: Literal["final", "pseudo"] = Field(
        "final", description="after E L-BFGS passes: gradient at the end, or the displacement over the local rate"
    )
    chunk: int = Field(0, ge=0, description="samples a forward pass, bounding memory; 0 chooses")
    threads: int = Field(0, ge=0, description="torch threads of a client, 0 for all cores")


class CurvatureSettings(_Group):
    """The rate d~_k = g_k . B_k g_k (18)."""

    kind: Literal["none", "secant", "hvp"] = Field(
        "none", description="pairs from successive models, from Hessian-vector products, or d~_k = lr |g_k|^2"
    )
    previous: Literal["cached", "recomputed"] = Field("cached", description="gradient at the pair's older model")
    memory: int = Field(1, ge=1, le=100, description="pairs kept, m")
    filter: float = Field(1e-8, ge=0, description="a pair is kept if s.y > filter |s| |y|")
    damping: bool = Field(False, description="Powell damping in place of the filter")


class StepSettings(_Group):
    """How far to go along the method's step."""

    lr: float = Field(1.0, gt=0, description="eta of the rule fixed")
    decay: float = Field(1.0, gt=0, le=1, description="eta_t = lr * decay^(t-1) (fixed)")
    radius: float = Field(1.0, gt=0, description="longest step |theta^{t+1} - theta^t| (clipped)")
    armijo: float = Field(1e-4, ge=0, lt=1, description="beta of the acceptance test (probed)")
    acceptance: float = Field(1.0, gt=0, le=1, description="share of participants whose test must hold (probed)")
    start: float = Field(1.0, gt=0, description="first factor alpha (probed)")
    max_factor: float = Field(1024.0, gt=0, description="largest factor alpha (probed)")
    min_move: float = Field(
        1e-7, gt=0, description="smallest |alpha step| over |theta| before the model counts as stationary (probed)"
    )
    halvings: int = Field(6, ge=1, le=40, description="rungs below the candidate in one exchange (probed)")
    grow_every: int = Field(3, ge=0, description="probe twice the factor every so many rounds, 0 never (probed)")
    on_stationary: Literal["stop", "stay", "relax"] = Field(
        "stop",
        description="no common descent step: end the run (with sampling: skip the round), skip the round, or take the "
        "step that lowers the mean loss",
    )


class DqnFedSettings(_Group):
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
        2.0, ge=0, description="hold d_k/|g_k|^2 within this factor of its median; 0 leaves the rates alone"
    )
    ridge: float = Field(0.0, ge=0, description="added to the unit-diagonal Gramian (two-sided)")
    cutoff: float = Field(1e-7, gt=0, lt=1, description="eigenvalues below cutoff * largest count as zero (two-sided)")


class FedAvgSettings(_Group):
    """FedAvg has no settings beyond `local.*` and `step.*`."""


class FedSgdSettings(_Group):
    """FedSGD: the mean gradient."""

    lr: float = Field(0.1, gt=0, description="eta")


class MgdaSettings(_Group):
    """MGDA: the minimum-norm point of the gradients' hull."""

    lr: float = Field(0.1, gt=0, description="eta")


class Settings(_Group):
    """All settings of one run.

    Raises
    ------
    ConfigError
        From `from_mapping`, for an unknown key, a wrong type, a value out of range or an impossible combination.
    """

    method: MethodName = Field("dqn-fed", description="how the server combines the clients")
    step_rule: StepRuleName = Field("auto", description="how far it goes; auto asks the method")
    data: str = Field("digits", description="digits, a torchvision name, an .npz file, or module:function")
    partition: PartitionName = Field("dirichlet", description="how data are dealt out")
    clients: int = Field(10, ge=1, le=100_000, description="number of clients")
    participation: float = Field(1.0, gt=0, le=1, description="share of clients asked in a round")
    rounds: int = Field(20, ge=1, description="rounds")
    num_classes: int = Field(0, ge=0, description="classes of the data; 0 asks the data")
    seed: int = Field(0, ge=0, description="of partition, initial model, sampling and mini-batches")
    model: str = Field("mlp", description="logistic, mlp, cnn, resnet18-gn, char-lstm, or module:function")
    ridge: float = Field(0.0, ge=0, description="adds ridge/2 |theta|^2 to every client's loss")
    dtype: Literal["float32", "float64"] = Field("float32", description="of model and gradients")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")
    evaluate_every: int = Field(1, ge=0, description="rounds between test evaluations, 0 only at the end")
    early_stopping: int = Field(
        0, ge=0, description="evaluations without a better validation accuracy before the best model is kept; 0 never"
    )
    min_clients: int = Field(1, ge=1, description="fewest replies with which a round counts")
    quorum: float = Field(1.0, gt=0, le=1, description="share of replies with which an exchange closes")
    deadline: float = Field(600.0, gt=0, description="seconds until an exchange closes")
    retries: int = Field(3, ge=0, description="how often an exchange short of min-clients is repeated")
    checkpoint_every: int = Field(1, ge=0, description="rounds between checkpoints, 0 never")
    output: str = Field("", description="directory of results; empty for none")
    resume: bool = Field(False, description="continue from the checkpoint in the output directory")
    split: SplitSettings = Field(default_factory=SplitSettings)
    local: LocalSettings = Field(default_factory=LocalSettings)
    curvature: CurvatureSettings = Field(default_factory=CurvatureSettings)
    step: StepSettings = Field(default_factory=StepSettings)
    dqn_fed: DqnFedSettings = Field(default_factory=DqnFedSettings)
    fedavg: FedAvgSettings = Field(default_factory=FedAvgSettings)
    fedsgd: FedSgdSettings = Field(default_factory=FedSgdSettings)
    mgda: MgdaSettings = Field(default_factory=MgdaSettings)

    @model_validator(mode="after")
    def _check_combinations(self) -> Settings:
        anchored = self.method == "dqn-fed" and self.dqn_fed.form == "anchored"
        if self.method == "fedavg" and self.local_work != "sgd":
            raise ValueError(f"local.work: fedavg averages local SGD, found {self.local_work!r}; use sgd or auto")
        if self.method != "fedavg" and self.local_work == "sgd":
            raise ValueError(f"local.work: {self.method} combines gradients, found 'sgd'; use gradient, lbfgs or auto")
        if self.rule == "probed" and self.local_work == "sgd":
            raise ValueError(
                "step-rule: probed compares losses with slopes of true gradients, which local SGD does not return; "
                "use newton, fixed or clipped"
            )
        if self.rule == "probed" and self.local.batch_size and not self.wants_update:
            raise ValueError(
                f"local.batch-size: found {self.local.batch_size}, but probed compares the loss on all samples with "
                "its slope; use 0, or step-rule newton, fixed or clipped"
            )
        if anchored and self.local_work != "gradient":
            raise ValueError(
                "local.work: the anchored form holds every client to its true gradient at the received model, found "
                f"{self.local_work!r}; use gradient or auto, or dqn-fed.form two-sided or one-sided"
            )
        if self.min_clients > self.sampled:
            raise ValueError(
                f"min-clients: found {self.min_clients}, but clients x participation asks only {self.sampled} a round"
            )
        if self.early_stopping and not self.split.validation_fraction:
            raise ValueError("early-stopping: needs split.validation-fraction above 0")
        return self

    @property
    def local_work(self) -> Literal["gradient", "sgd", "lbfgs"]:
        """The local work, with `auto` resolved to the method's default."""
        if self.local.work == "auto":
            return "sgd" if self.method == "fedavg" else "gradient"
        return self.local.work

    @property
    def rule(self) -> Literal["newton", "fixed", "clipped", "probed"]:
        """The step rule, with `auto` resolved to the method's default."""
        if self.step_rule == "auto":
            return "probed" if self.method == "dqn-fed" else "newton"
        return self.step_rule

    @property
    def reference(self) -> Literal["none", "gradient", "momentum", "lbfgs", "update"]:
        """The anchor, with `auto` resolved: with sampling, a history of mean gradients would mix different clients."""
        if self.dqn_fed.reference == "auto":
            return "lbfgs" if self.sampled >= self.clients else "momentum"
        return self.dqn_fed.reference

    @property
    def sampled(self) -> int:
        """Clients asked in a round."""
        return max(1, round(self.participation * self.clients))

    @property
    def wants_update(self) -> bool:
        """Whether clients send the displacement of local passes beside the gradient."""
        return self.method == "dqn-fed" and self.dqn_fed.form == "anchored" and self.dqn_fed.reference == "update"

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Settings:
        """Check nested or dotted keys and build the settings.

        Parameters
        ----------
        mapping : Mapping[str, Any]
            As read from YAML, TOML or a Flower run config. Absent keys take their default.

        Raises
        ------
        ConfigError
            Naming each faulty key, what was found and what is allowed.
        """
        try:
            return cls.model_validate(nest(mapping))
        except ValidationError as error:
            raise ConfigError("\n".join(_explain(item) for item in error.errors())) from None

    def flat(self) -> dict[str, Scalar]:
        """The settings as dotted kebab-case keys and scalars, as a Flower run config holds them."""
        return flatten(self.model_dump(by_alias=True))


def nest(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted keys into nested mappings; whole numbers are welcome where a real one is asked for."""
    nested: dict[str, Any] = {}
    for key, value in mapping.items():
        group = nested
        *parents, last = str(key).split(".")
        for parent in parents:
            group = group.setdefault(parent, {})
            if not isinstance(group, dict):
                raise ConfigError(f"{key}: {parent!r} is set both as a value and as a group")
        if isinstance(value, Mapping):
            value = nest(value)
            if isinstance(group.get(last), dict):
                value = {**group[last], **value}
        group[last] = value
    return nested


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Inverse of `nest`: nested mappings to dotted keys."""
    flat: dict[str, Scalar] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def describe() -> list[tuple[str, Scalar, str]]:
    """Every key with its default and meaning, for `--help` and the documents."""
    rows: list[tuple[str, Scalar, str]] = []
    for name, entry in Settings.model_fields.items():
        group = entry.annotation
        if isinstance(group, type) and issubclass(group, _Group):
            rows += [
                (f"{_kebab(name)}.{_kebab(inner)}", field.default, _meaning(field.description, field.annotation))
                for inner, field in group.model_fields.items()
            ]
        else:
            rows.append((_kebab(name), entry.default, _meaning(entry.description, entry.annotation)))
    return rows


def _meaning(description: str | None, annotation: object) -> str:
    choices = get_args(annotation)
    return f"{description} ({' | '.join(map(str, choices))})" if choices else str(description)


def _explain(item: Any) -> str:
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        group = key.rsplit(".", 1)[0] + "." if "." in key else ""
        known = sorted(name[len(group) :] for name, _, _ in describe() if name.startswith(group))
        near = get_close_matches(key[len(group) :], known, n=1)
        hint = f"; did you mean {group}{near[0]}?" if near else ""
        return f"{key}: unknown key{hint}; allowed{' in ' + group[:-1] if group else ''}: {', '.join(known)}"
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "value_error":
        return f"{key}: {message}" if key else message
    return f"{key}: {message}, found {item['input']!r}"
