"""Settings of a run: one set of keys for YAML files, `[tool.flwr.app.config]` and `--run-config`.

Keys are kebab-case; groups are nested mappings or dotted keys (`local: {epochs: 2}` equals `local.epochs: 2`).
`Settings.from_mapping` reads both, and turns every fault into a `ConfigError` that names the key, what was found and
what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal, get_args

from pydantic import Field, ValidationError, field_validator, model_validator

from dqnfed_flwr.config._group import Group, Scalar, kebab
from dqnfed_flwr.config.combinations import faults, title_of
from dqnfed_flwr.config.groups import (
    MAX_FALL_EACH,
    CurvatureSettings,
    LocalSettings,
    NoiseSettings,
    PartitionName,
    SplitSettings,
    StepRuleName,
    StepSettings,
)
from dqnfed_flwr.config.guarantee import GuaranteeSettings
from dqnfed_flwr.config.mapping import flatten, nest
from dqnfed_flwr.config.methods import (
    AdaFedSettings,
    AflSettings,
    DittoSettings,
    DqnFedSettings,
    FedAdamSettings,
    FedAvgMSettings,
    FedCorrSettings,
    FedFvSettings,
    FedHealSettings,
    FedLfSettings,
    FedMdfgSettings,
    FedMgdaPlusSettings,
    FedNewSettings,
    FedNlSettings,
    GiFairSettings,
    KrumSettings,
    LocalNewtonSettings,
    MomentumSettings,
    PropFairSettings,
    QFflSettings,
    SemiVRedSettings,
    ServerLbfgsSettings,
    TermSettings,
    TrimmedMeanSettings,
    VRedSettings,
)
from dqnfed_flwr.config.profiles import GRADIENTS, PASSES, Profile, Rule, Work, profile_of
from dqnfed_flwr.config.retired import is_retired, said_of, without_retired
from dqnfed_flwr.config.scenario import AttackSettings, StartSettings
from dqnfed_flwr.errors import ConfigError


class Settings(Group):
    """All settings of one run.

    Raises
    ------
    ConfigError
        From `from_mapping`, for an unknown key, a wrong type, a value out of range or an impossible combination.
    """

    method: str = Field("dqn-fed", description="how the server combines the clients, see methods.md")
    step_rule: StepRuleName = Field("auto", description="how far it goes; auto asks the method")
    data: str = Field("digits", description="a set by name or FORM:PATH, see data.md; an .npz file, or module:function")
    partition: PartitionName = Field("dirichlet", description="how data are dealt out")
    clients: int = Field(10, ge=1, le=100_000, description="number of clients")
    participation: float = Field(1.0, gt=0, le=1, description="share of clients asked in a round")
    rounds: int = Field(20, ge=1, description="rounds")
    num_classes: int = Field(0, ge=0, description="classes of the data; 0 asks the data")
    seed: int = Field(0, ge=0, lt=2**63, description="of partition, initial model, sampling and mini-batches")
    model: str = Field(
        "mlp", description="logistic, mlp, cnn, resnet18-gn, char-lstm, char-lstm-small, or module:function"
    )
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
    retries: int = Field(
        3, ge=0, description="how often an exchange short of min-clients is repeated, or the wait for the first clients"
    )
    checkpoint_every: int = Field(1, ge=0, description="rounds between checkpoints, 0 never")
    output: str = Field("", description="directory of results; empty for none")
    resume: bool = Field(False, description="continue from the checkpoint in the output directory")
    metrics: str = Field("", description="directory of Prometheus files for dqnfed exporter; empty for none")
    metrics_clients: int = Field(0, ge=0, le=10_000, description="clients with series of their own, 0 for none")
    split: SplitSettings = Field(default_factory=SplitSettings)
    noise: NoiseSettings = Field(default_factory=NoiseSettings)
    start: StartSettings = Field(default_factory=StartSettings)
    attack: AttackSettings = Field(default_factory=AttackSettings)
    local: LocalSettings = Field(default_factory=LocalSettings)
    curvature: CurvatureSettings = Field(default_factory=CurvatureSettings)
    step: StepSettings = Field(default_factory=StepSettings)
    guarantee: GuaranteeSettings = Field(default_factory=GuaranteeSettings)
    dqn_fed: DqnFedSettings = Field(default_factory=DqnFedSettings)
    momentum: MomentumSettings = Field(default_factory=MomentumSettings)
    server_lbfgs: ServerLbfgsSettings = Field(default_factory=ServerLbfgsSettings)
    fedavgm: FedAvgMSettings = Field(default_factory=FedAvgMSettings)
    fedadam: FedAdamSettings = Field(default_factory=FedAdamSettings)
    q_ffl: QFflSettings = Field(default_factory=QFflSettings)
    afl: AflSettings = Field(default_factory=AflSettings)
    term: TermSettings = Field(default_factory=TermSettings)
    fedmgda: FedMgdaPlusSettings = Field(default_factory=FedMgdaPlusSettings)
    ditto: DittoSettings = Field(default_factory=DittoSettings)
    fedfv: FedFvSettings = Field(default_factory=FedFvSettings)
    fedmdfg: FedMdfgSettings = Field(default_factory=FedMdfgSettings)
    fedlf: FedLfSettings = Field(default_factory=FedLfSettings)
    fedheal: FedHealSettings = Field(default_factory=FedHealSettings)
    fednl: FedNlSettings = Field(default_factory=FedNlSettings)
    fednew: FedNewSettings = Field(default_factory=FedNewSettings)
    local_newton: LocalNewtonSettings = Field(default_factory=LocalNewtonSettings)
    propfair: PropFairSettings = Field(default_factory=PropFairSettings)
    gifair: GiFairSettings = Field(default_factory=GiFairSettings)
    vred: VRedSettings = Field(default_factory=VRedSettings)
    semi_vred: SemiVRedSettings = Field(default_factory=SemiVRedSettings)
    adafed: AdaFedSettings = Field(default_factory=AdaFedSettings)
    fedcorr: FedCorrSettings = Field(default_factory=FedCorrSettings)
    krum: KrumSettings = Field(default_factory=KrumSettings)
    trimmed_mean: TrimmedMeanSettings = Field(default_factory=TrimmedMeanSettings)

    @field_validator("method")
    @classmethod
    def _check_method(cls, method: str) -> str:
        try:
            profile_of(method)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return method

    @model_validator(mode="after")
    def _check_combinations(self) -> Settings:
        for fault in faults(self):
            raise ValueError(fault)
        return self

    @property
    def profile(self) -> Profile:
        """What the method asks of clients and step."""
        return profile_of(self.method)

    @property
    def title(self) -> str:
        """The method's name in tables, with the form it runs in where it has several."""
        return title_of(self)

    @property
    def stage_settings(self) -> Settings:
        """What the last stage of fedcorr runs with: these settings under its method. Themselves for other methods."""
        return self.model_copy(update={"method": self.fedcorr.last}) if self.method == "fedcorr" else self

    @property
    def local_work(self) -> Work:
        """The local work, with `auto` resolved to the method's default; fedcorr leaves the choice to its last stage."""
        work = "auto" if self.method == "fedcorr" else self.local.work
        return self.profile.works[0] if work == "auto" else work

    @property
    def rule(self) -> Rule:
        """The step rule, with `auto` resolved to the method's default; that of the last stage for fedcorr."""
        return self.stage_settings.profile.rules[0] if self.step_rule == "auto" else self.step_rule

    @property
    def unit(self) -> float:
        """What makes a step of a row: eta for a gradient, 1 for the displacement of local passes."""
        return self.local.lr if self.stage_settings.local_work in GRADIENTS else 1.0

    @property
    def reference(self) -> Literal["none", "gradient", "momentum", "lbfgs", "update"]:
        """The anchor, with `auto` resolved: with sampling, a history of mean gradients would mix different clients.

        Where clients may lie, it would mix what was set aside with what was not.
        """
        if self.dqn_fed.reference == "auto":
            doubted = self.guarantee.tolerate and self.rule == "probed"
            return "lbfgs" if self.sampled >= self.clients and not doubted else "momentum"
        return self.dqn_fed.reference

    @property
    def differentiates_twice(self) -> bool:
        """Whether clients compute products with Hessians."""
        stages = (self, self.stage_settings)
        return any(
            each.local_work in ("newton", "fednl", "fednew") or (each.curvature.kind == "hvp" and each.reads_curvature)
            for each in stages
        )

    @property
    def sampled(self) -> int:
        """Clients asked in a round."""
        return max(1, round(self.participation * self.clients))

    def max_fall(self, participants: int) -> float:
        """`step.max-fall` with 0 resolved: a share of so many participants' mean loss; infinite for no bound."""
        if self.step.max_fall:
            return self.step.max_fall
        return MAX_FALL_EACH * participants if self.sampled < self.clients else math.inf

    @property
    def reads_curvature(self) -> bool:
        """Whether rates or curvature pairs mean anything to the method or its local work."""
        last, work = self.stage_settings, self.stage_settings.local_work
        by_pairs = work == "newton" and last.local_newton.solver == "lbfgs"
        return last.method == "dqn-fed" or by_pairs or (work == "lbfgs" and last.local.epochs > 1)

    @property
    def wants_step(self) -> bool:
        """Whether clients that train need the step before, u_{t-1}, for their local work."""
        return self.stage_settings.local_work == "fednew"

    @property
    def wants_update(self) -> bool:
        """Whether clients send the displacement of local passes beside the gradient."""
        method = self.stage_settings.method
        return method == "dqn-fed" and self.dqn_fed.form == "anchored" and self.dqn_fed.reference == "update"

    @property
    def trains_buffers(self) -> bool:
        """Whether local work changes the model's buffers, so that clients send them."""
        return self.local_work in PASSES

    @classmethod
    def from_record(cls, flat: Mapping[str, Any]) -> Settings:
        """The settings that a run wrote down, by dotted keys, also one of an earlier version.

        Raises
        ------
        ConfigError
            As `from_mapping`.
        """
        return cls.from_mapping(without_retired(flat))

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


def describe() -> list[tuple[str, Scalar, str]]:
    """Every key with its default and meaning, for `--help` and the documents."""
    rows: list[tuple[str, Scalar, str]] = []
    for name, entry in Settings.model_fields.items():
        group = entry.annotation
        if isinstance(group, type) and issubclass(group, Group):
            rows += [
                (f"{kebab(name)}.{kebab(inner)}", field.default, _meaning(field.description, field.annotation))
                for inner, field in group.model_fields.items()
            ]
        else:
            rows.append((kebab(name), entry.default, _meaning(entry.description, entry.annotation)))
    return rows


def _meaning(description: str | None, annotation: object) -> str:
    choices = get_args(annotation)
    return f"{description} ({' | '.join(map(str, choices))})" if choices else str(description)


def _explain(item: Any) -> str:
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        if is_retired(key):
            return said_of(key)
        group = key.rsplit(".", 1)[0] + "." if "." in key else ""
        known = sorted(name[len(group) :] for name, _, _ in describe() if name.startswith(group))
        near = get_close_matches(key[len(group) :], known, n=1)
        if near:
            return f"{key}: unknown key; did you mean {group}{near[0]}? `dqnfed settings` lists all"
        if group:
            return f"{key}: unknown key; allowed in {group[:-1]}: {', '.join(known)}"
        return f"{key}: unknown key; `dqnfed settings` lists all"
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "value_error":
        return f"{key}: {message}" if key else message
    return f"{key}: {message}, found {item['input']!r}"
