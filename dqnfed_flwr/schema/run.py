"""The settings that every run has; `config.Settings` adds the groups of the methods and step rules."""

from __future__ import annotations

from functools import partial
from typing import Literal, TypeVar

from pydantic import Field, ValidationInfo, field_validator

from dqnfed_flwr.schema.group import Group, setting
from dqnfed_flwr.schema.groups import (
    AttackSettings,
    CurvatureSettings,
    GuaranteeSettings,
    LocalSettings,
    MessagesSettings,
    NoiseSettings,
    PartitionName,
    PrivacySettings,
    RowsSettings,
    SplitSettings,
    StartSettings,
    StepSettings,
)

AUTO = "auto"
G = TypeVar("G", bound=Group)
_data, _model, _training = (partial(setting, about=about) for about in ("data", "model", "training"))
_protocol, _silent = partial(setting, about="protocol"), partial(setting, changes="nothing", on_resume=True)


class RunSettings(Group):
    """What is set in every run, whatever the method."""

    method: str = setting(
        "dqn-fed",
        "how the server combines the clients, see methods.md",
        about="method",
        instead="name methods by --methods",
    )
    step_rule: str = _training("auto", "how far it goes; auto asks the method")
    task: str = _data(
        "classification",
        "classification, regression, huber-regression, multi-label, segmentation, next-token, or module:Class",
    )
    data: str = _data("digits", "a set by name or FORM:PATH, see data.md; an .npz file, or module:function")
    data_scale: Literal["none", "standardise"] = _data(
        "none", "float features as they are, or with mean 0 and deviation 1, by each client's own training part"
    )
    partition: PartitionName = _data("dirichlet", "how data are dealt out")
    clients: int = _data(10, "number of clients", size="size", ge=1, le=100_000)
    participation: float = _training(1.0, "share of clients asked in a round", size="size", gt=0, le=1)
    rounds: int = _training(20, "rounds", on_resume=True, size="size", ge=1)
    num_classes: int = _data(0, "classes of the data; 0 asks the data", level="expert", ge=0)
    seed: int = _data(
        0, "of partition, initial model, sampling and mini-batches", instead="name seeds by --seeds", ge=0, lt=2**63
    )
    model: str = _model("mlp", "logistic, mlp, cnn, resnet18-gn, char-lstm, char-lstm-small, or module:function")
    ridge: float = _model(0.0, "adds ridge/2 |theta|^2 to every client's loss", level="expert", ge=0)
    dtype: Literal["float32", "float64"] = _model("float32", "of model and gradients")
    device: str = setting("auto", "auto, cpu, cuda, cuda:1, mps", about="machine", changes="details")
    evaluate_every: int = _protocol(
        AUTO,
        "rounds between evaluations of all clients, 0 only at the end; auto: about as often as each is asked to train",
        changes="details",
        validate_default=True,
        ge=0,
    )
    early_stopping: int = _training(
        0,
        "evaluations without a better validation accuracy before the best model is kept; 0 never",
        on_resume=True,
        ge=0,
    )
    min_clients: int = _protocol(1, "fewest replies with which a round counts", ge=1)
    quorum: float = _protocol(1.0, "share of replies with which an exchange closes", on_resume=True, gt=0, le=1)
    deadline: float = _silent(600.0, "seconds until an exchange closes", about="protocol", gt=0)
    retries: int = _silent(
        3,
        "how often an exchange short of min-clients is repeated, or the wait for the first clients",
        about="protocol",
        level="expert",
        ge=0,
    )
    checkpoint_every: int = _silent(1, "rounds between checkpoints, 0 never", about="output", level="expert", ge=0)
    output: str = _silent(
        "", "directory of results; empty for none", about="output", path=True, instead="name a folder by --output"
    )
    resume: bool = _silent(
        False,
        "continue from the checkpoint in the output directory",
        about="output",
        instead="the same command again goes on where it was interrupted",
    )
    metrics: str = _silent(
        "", "directory of Prometheus files for dqnfed exporter; empty for none", about="output", path=True
    )
    metrics_clients: int = _silent(0, "clients with own series", about="output", level="expert", ge=0, le=10_000)
    split: SplitSettings = Field(default_factory=SplitSettings)
    noise: NoiseSettings = Field(default_factory=NoiseSettings)
    start: StartSettings = Field(default_factory=StartSettings)
    attack: AttackSettings = Field(default_factory=AttackSettings)
    local: LocalSettings = Field(default_factory=LocalSettings)
    curvature: CurvatureSettings = Field(default_factory=CurvatureSettings)
    step: StepSettings = Field(default_factory=StepSettings)
    rows: RowsSettings = Field(default_factory=RowsSettings)
    messages: MessagesSettings = Field(default_factory=MessagesSettings)
    privacy: PrivacySettings = Field(default_factory=PrivacySettings)
    guarantee: GuaranteeSettings = Field(default_factory=GuaranteeSettings)

    @field_validator("evaluate_every", mode="before")
    @classmethod
    def _resolve_evaluations(cls, given: object, info: ValidationInfo) -> object:
        """Where everybody takes part it is every round; where few are sampled, all would cost more than the round."""
        if given != AUTO or not {"clients", "participation"} <= info.data.keys():
            return 1 if given == AUTO else given
        clients, share = info.data["clients"], info.data["participation"]
        return round(clients / sampled_of(clients, share))

    def group_of(self, kind: type[G]) -> G:
        """The settings that a method or a step rule declared as the group `kind`.

        Raises
        ------
        LookupError
            If nothing in this package declares such a group.
        """
        for value in self.__dict__.values():
            if isinstance(value, kind):
                return value
        raise LookupError(f"{kind.__name__}: no method or rule declares this group; see dqnfed_flwr/config/methods.py")

    @property
    def sampled(self) -> int:
        """Clients asked in a round."""
        return sampled_of(self.clients, self.participation)


def sampled_of(clients: int, participation: float) -> int:
    """How many of so many clients are asked in a round."""
    return max(1, round(participation * clients))
