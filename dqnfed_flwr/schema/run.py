"""The settings that every run has, and what a method declares of itself to settings, clients and step rules.

`config.Settings` adds the groups of the methods. Methods know a run by the class here, so that they and their settings
can be declared in one file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field, ValidationInfo, field_validator

from dqnfed_flwr.schema.group import Group, setting
from dqnfed_flwr.schema.groups import (
    MAX_FALL_EACH,
    AttackSettings,
    CurvatureSettings,
    GuaranteeSettings,
    LocalSettings,
    NoiseSettings,
    PartitionName,
    RowsSettings,
    SplitSettings,
    StartSettings,
    StepSettings,
)
from dqnfed_flwr.schema.work import GENERAL, GRADIENT, LBFGS, SGD, WorkProfile

FREE_LENGTH = "fixed"
"""The rule of a method whose direction has no length of its own, as it makes the rows equally long: a rate of the
server times a decay makes the step, and both belong into its grid."""
LENGTH_KEYS = ("step.lr", "step.decay")
"""What sets the length of such a step; 1 and 1 leave it as the method gives it."""
AUTO = "auto"
ANY_WORK = (SGD, GRADIENT, LBFGS)
GRADIENTS = (GRADIENT, LBFGS)
GRADIENTS_FIRST = (GRADIENT, SGD, LBFGS)
G = TypeVar("G", bound=Group)
_data, _model, _training = (partial(setting, about=about) for about in ("data", "model", "training"))
_protocol, _silent = partial(setting, about="protocol"), partial(setting, changes="nothing", on_resume=True)


@dataclass(frozen=True, slots=True)
class LastStage:
    """The last stage of a method that has several.

    Attributes
    ----------
    method : str
        Its method.
    key : str
        The key that names it.
    before : int
        Rounds before it.
    """

    method: str
    key: str
    before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A method as seen from outside; one with more to say of a run than a field can derives a class.

    Attributes
    ----------
    name, title : str
        As `method` takes it, and as tables show it.
    build : Callable[[RunSettings], Any]
        Makes a fresh `methods._base.Method` for a run.
    settings : type[Group] | None
        Its group of settings; the group's key is `group`, or the name.
    works : tuple[WorkProfile, ...]
        Local work that it can be fed with, the default first: passes of SGD, so that rivals do as much of it as each
        other, unless the paper's rule needs something else.
    rule : str
        The paper's step rule, which `auto` stands for; `steps.rules_for` says which others make sense.
    one_gradient : str
        Why its rows are one gradient a round by default, where those of others are passes of SGD; tables print it.
        Empty where they are not.
    personal : bool
        Whether accuracies are those of a model of its own on every client.
    """

    name: str
    title: str
    build: Callable[[RunSettings], Any]
    settings: type[Group] | None = None
    group: str = ""
    works: tuple[WorkProfile, ...] = ANY_WORK
    rule: str = "newton"
    one_gradient: str = ""
    personal: bool = False

    keys_in_title: ClassVar[tuple[str, ...]] = ()
    """Keys, with their group, whose value `title_of` says."""
    around: ClassVar[str] = ""
    """`module:Class` of the client's half that does the local work of its `anchor` next to its own."""

    def title_of(self, run: RunSettings) -> str:
        """The title, with the form that a run has it in."""
        return self.title

    def classes_only(self, run: RunSettings) -> str:
        """Why only task classification suits it, and what to do; empty where any task does."""
        return ""

    def nonnegative(self, run: RunSettings, *, floor: bool) -> str:
        """What it does with losses that makes no sense of some below 0; empty where any will do.

        With `floor`, the least value of the loss is known, and it may count from there.
        """
        return ""

    def faults(self, run: RunSettings) -> Iterator[str]:
        """What is wrong with the settings of a run, each naming the key, what was found, what to do."""
        yield from ()

    def reads_curvature(self, run: RunSettings) -> bool:
        """Whether it reads rates or curvature pairs."""
        return False

    def follows_passes(self, run: RunSettings) -> bool:
        """Whether the local passes that are asked for decide what its clients do, though its own work has none."""
        return False

    def anchor(self, run: RunSettings) -> RunSettings | None:
        """The settings under which the method runs whose step it changes; None where it changes no other's."""
        return None

    def last_stage(self, run: RunSettings) -> LastStage | None:
        """Its last stage; None for a method without stages."""
        return None

    @property
    def key(self) -> str:
        """The key of its group of settings."""
        return self.group or self.name

    @property
    def free_length(self) -> bool:
        """Whether the length of its step is a rate of the server, by `LENGTH_KEYS`."""
        return self.rule == FREE_LENGTH


@dataclass(frozen=True, slots=True)
class RuleProfile:
    """A step rule as seen from outside.

    Attributes
    ----------
    name : str
        As `step-rule` takes it.
    build : Callable[[RunSettings], Any]
        Makes a fresh `steps.StepRule` for a run.
    settings : type[Group] | None
        Its own settings in the group `step`.
    judged_by : str
        What decides on a candidate: nothing; each participant by its own test, so that `guarantee` applies; or the
        losses of all on a ladder of factors.
    reads_hints : bool
        Whether it needs the `SearchHints` of a method, and so suits only a method that it is the `rule` of.
    """

    name: str
    build: Callable[[RunSettings], Any]
    settings: type[Group] | None = None
    judged_by: Literal["nothing", "test", "losses"] = "nothing"
    reads_hints: bool = False

    @property
    def compares_slopes(self) -> bool:
        """Whether losses are compared with slopes g_k . step, which takes gradients over all samples for rows."""
        return self.judged_by != "nothing"


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
    guarantee: GuaranteeSettings = Field(default_factory=GuaranteeSettings)

    @field_validator("evaluate_every", mode="before")
    @classmethod
    def _resolve_evaluations(cls, given: object, info: ValidationInfo) -> object:
        """Where everybody takes part it is every round; where few are sampled, all would cost more than the round."""
        if given != AUTO or not {"clients", "participation"} <= info.data.keys():
            return 1 if given == AUTO else given
        clients, share = info.data["clients"], info.data["participation"]
        return round(clients / sampled_of(clients, share))

    @property
    def profile(self) -> Profile:
        """What the method asks of clients and step; `config.Settings`, which knows the methods, looks it up."""
        raise NotImplementedError

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
    def title(self) -> str:
        """The method's name in tables, with the form it runs in where it has several."""
        profile, last = self.profile, self.stage_settings
        if last is not self:
            return f"{profile.title} + {last.title}"
        return profile.title_of(self)

    @property
    def stage_settings(self: R) -> R:
        """What the last stage runs with: these settings under its method. Themselves for a method without stages."""
        stage = self.profile.last_stage(self)
        return self.model_copy(update={"method": stage.method}) if stage else self

    @property
    def anchor_settings(self: R) -> R | None:
        """What the anchor runs with, the method whose step is changed; None where there is none."""
        last = self.stage_settings
        return last.profile.anchor(last)  # type: ignore[return-value]

    @property
    def sends_anchor_row(self) -> bool:
        """Whether clients send a row for the anchor next to their gradient; an anchor of gradients needs none."""
        anchor = self.anchor_settings
        return anchor is not None and anchor.work is not GRADIENT

    @property
    def follows_passes(self) -> bool:
        """Whether `local.epochs` and `local.batch-size` decide what clients do, though no work may have passes yet."""
        last = self.stage_settings
        return last.profile.follows_passes(last)

    @property
    def parts(self: R) -> tuple[R, ...]:
        """These settings, and those of the last stage's method and of the anchor, where there are such."""
        last, anchor = self.stage_settings, self.anchor_settings
        return (self, *([last] if last is not self else []), *([anchor] if anchor else []))

    @property
    def work(self) -> WorkProfile:
        """The local work, with `auto` resolved to the method's default; a method with stages leaves it to the last."""
        name = "auto" if self.profile.last_stage(self) else self.local.work
        first = self.profile.works[0]
        return first if name == "auto" else next((w for w in self.profile.works if w.name == name), GENERAL[name])

    @property
    def works(self) -> tuple[WorkProfile, ...]:
        """All local work of the run: that of the method, of its last stage, and of the anchor."""
        return tuple(settings.work for settings in self.parts)

    @property
    def rule(self) -> RuleProfile:
        """The step rule, with `auto` resolved to the method's default; with stages, that of the last one.

        As with `profile`, `config.Settings` looks it up.
        """
        raise NotImplementedError

    @property
    def judges_held_out(self) -> bool:
        """Whether clients judge steps by their held-out parts."""
        return self.rule.judged_by == "test" and self.step.judge != "training"

    @property
    def row_lr(self) -> float:
        """What makes a step of a row: eta for a gradient, 1 for the displacement of local passes."""
        return self.local.lr if self.stage_settings.work.scaled_row else 1.0

    @property
    def differentiates_twice(self) -> bool:
        """Whether clients compute products with Hessians."""
        return any(part.work.twice or (part.curvature.kind == "hvp" and part.reads_curvature) for part in self.parts)

    @property
    def sampled(self) -> int:
        """Clients asked in a round."""
        return sampled_of(self.clients, self.participation)

    def max_fall(self, participants: int) -> float:
        """`step.max-fall` with 0 resolved: a share of so many participants' mean loss; infinite for no bound."""
        if self.step.max_fall:
            return self.step.max_fall
        return MAX_FALL_EACH * participants if self.sampled < self.clients else math.inf

    @property
    def reads_curvature(self) -> bool:
        """Whether rates or curvature pairs mean anything to the method or its local work."""
        last = self.stage_settings
        return last.profile.reads_curvature(last) or (last.work is LBFGS and last.local.epochs > 1)

    @property
    def wants_step(self) -> bool:
        """Whether clients that train need the step before, u_{t-1}, for their local work."""
        return any(work.wants_step for work in self.works)

    @property
    def trains_buffers(self) -> bool:
        """Whether local work changes the model's buffers, so that clients send them."""
        return self.work.passes

    @property
    def one_full_step(self) -> bool:
        """Whether a client's local SGD is one step on all its samples, as in FedSGD."""
        return self.work.passes and self.local.epochs == 1 and not self.local.batch_size


R = TypeVar("R", bound=RunSettings)


def sampled_of(clients: int, participation: float) -> int:
    """How many of so many clients are asked in a round."""
    return max(1, round(participation * clients))
