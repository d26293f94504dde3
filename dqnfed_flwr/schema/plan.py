"""What a method and a step rule declare of themselves, and the plan of a run, in which all that is decided.

Methods, step rules and local work know a run by its `RunPlan`, so that they and their settings can be declared in one
file. `config.resolve` makes it of the settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

from dqnfed_flwr.schema.group import Group
from dqnfed_flwr.schema.groups import LOW_RANK, SHORT_ROW, SHORT_STEP, WHOLE
from dqnfed_flwr.schema.run import G, RunSettings
from dqnfed_flwr.schema.work import GRADIENT, LBFGS, SGD, WorkProfile

FREE_LENGTH = "fixed"
"""The rule of a method whose direction has no length of its own, as it makes the rows equally long: a rate of the
server times a decay makes the step, and both belong into its grid."""
LENGTH_KEYS = ("step.lr", "step.decay")
"""What sets the length of such a step; 1 and 1 leave it as the method gives it."""
ANY_WORK = (SGD, GRADIENT, LBFGS)
GRADIENTS = (GRADIENT, LBFGS)
GRADIENTS_FIRST = (GRADIENT, SGD, LBFGS)


class LastStage(NamedTuple):
    """The last stage of a method that has several: its method, the key that names that, and the rounds before it."""

    method: str
    key: str
    before: int


class AnchorChoice(NamedTuple):
    """The method whose step another one changes, by name, its local work, perhaps `auto`, and the key that names it."""

    method: str
    work: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A method as seen from outside; one with more to say of a run than a field can derives a class.

    Attributes
    ----------
    name, title : str
        As `method` takes it, and as tables show it.
    build : Callable[[RunPlan], Any]
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
    build: Callable[[RunPlan], Any]
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

    def title_of(self, run: RunPlan) -> str:
        """The title, with the form that a run has it in."""
        return self.title

    def classes_only(self, run: RunPlan) -> str:
        """Why only task classification suits it, and what to do; empty where any task does."""
        return ""

    def nonnegative(self, run: RunPlan, *, floor: bool) -> str:
        """What it does with losses that makes no sense of some below 0; empty where any will do.

        With `floor`, the least value of the loss is known, and it may count from there.
        """
        return ""

    def faults(self, run: RunPlan) -> Iterator[str]:
        """What is wrong with the settings of a run, each naming the key, what was found, what to do."""
        yield from ()

    def reads_curvature(self, run: RunPlan) -> bool:
        """Whether it reads rates or curvature pairs."""
        return False

    def follows_passes(self, run: RunPlan) -> bool:
        """Whether the local passes that are asked for decide what its clients do, though its own work has none."""
        return False

    def shortens(self, run: RunPlan) -> bool:
        """Whether its messages are short unless the settings say otherwise: where that was measured."""
        return False

    def anchor(self, run: RunPlan) -> AnchorChoice | None:
        """The method whose step it changes; None where it changes no other's."""
        return None

    def last_stage(self, settings: RunSettings) -> LastStage | None:
        """Its last stage; None for a method without stages."""
        return None

    @property
    def key(self) -> str:
        """The key of its group of settings."""
        return self.group or self.name


@dataclass(frozen=True, slots=True)
class RuleProfile:
    """A step rule as seen from outside.

    Attributes
    ----------
    name : str
        As `step-rule` takes it.
    build : Callable[[RunPlan], Any]
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
    build: Callable[[RunPlan], Any]
    settings: type[Group] | None = None
    judged_by: Literal["nothing", "test", "losses"] = "nothing"
    reads_hints: bool = False

    @property
    def compares_slopes(self) -> bool:
        """Whether losses are compared with slopes g_k . step, which takes gradients over all samples for rows."""
        return self.judged_by != "nothing"


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A run, or a part of one, with all that its settings leave to `auto`, to stages or to an anchor decided.

    Attributes
    ----------
    settings : RunSettings
        As they were given.
    method : Profile
        The method.
    work : WorkProfile
        Its local work.
    rule : RuleProfile
        The step rule; with stages, that of the last one.
    stage : RunPlan | None
        The last stage of a method with stages.
    before : int
        Rounds before that stage.
    anchor : RunPlan | None
        The method whose step is changed, in the last stage where there are stages.
    """

    settings: RunSettings
    method: Profile
    work: WorkProfile
    rule: RuleProfile
    stage: RunPlan | None = None
    before: int = 0
    anchor: RunPlan | None = None

    def group_of(self, kind: type[G]) -> G:
        """As `RunSettings.group_of`."""
        return self.settings.group_of(kind)

    @property
    def last(self) -> RunPlan:
        """The last stage, or the whole run."""
        return self.stage or self

    @property
    def title(self) -> str:
        """The method's name in tables, with the form it runs in where it has several."""
        return f"{self.method.title} + {self.stage.title}" if self.stage else self.method.title_of(self)

    @cached_property
    def parts(self) -> tuple[RunPlan, ...]:
        """The run, its last stage, and its anchor, where there are such."""
        return tuple(part for part in (self, self.stage, self.anchor) if part)

    @cached_property
    def works(self) -> tuple[WorkProfile, ...]:
        """All local work of the run: that of each part."""
        return tuple(part.work for part in self.parts)

    @property
    def sends_anchor_row(self) -> bool:
        """Whether clients send a row for the anchor next to their gradient; an anchor of gradients needs none."""
        return self.anchor is not None and self.anchor.work is not GRADIENT

    @property
    def masked(self) -> bool:
        """Whether the server sees no row, only inner products and one sum a model."""
        return self.settings.privacy.mode == "masked"

    @property
    def private(self) -> bool:
        """Whether what clients give of their records is under differential privacy."""
        return self.settings.privacy.epsilon > 0

    @property
    def judges_held_out(self) -> bool:
        """Whether clients judge steps by their held-out parts."""
        return self.rule.judged_by == "test" and self.settings.step.judge != "training"

    @property
    def row_lr(self) -> float:
        """What makes a step of a row: eta for a gradient, 1 for the displacement of local passes."""
        return self.settings.local.lr if self.last.work.scaled_row else 1.0

    @cached_property
    def reads_curvature(self) -> bool:
        """Whether rates or curvature pairs mean anything to the method or its local work."""
        last = self.last
        return last.method.reads_curvature(last) or (last.work is LBFGS and last.settings.local.epochs > 1)

    @property
    def trains_on_line(self) -> bool:
        """Whether clients that train need the step that led to the model, also where others took it."""
        return (self.masked and self.anchor is not None) or self.works_on_line  # masked ones say their product with it

    @property
    def works_on_line(self) -> bool:
        """Whether what clients train by is the step that led to the model."""
        curvature = self.settings.curvature
        recomputed = curvature.kind == "secant" and curvature.previous == "recomputed"
        return any(work.wants_step for work in self.works) or (recomputed and self.reads_curvature)

    @property
    def row_bits(self) -> int:
        """Bits a value in which clients send the vectors of their replies; masked ones send words of a sum."""
        if self.masked:
            return WHOLE
        found = self.settings.messages.row
        return found if isinstance(found, int) else SHORT_ROW if self._shortens else WHOLE

    @property
    def sum_bits(self) -> int:
        """Bits a word of the sum of masked clients."""
        found = self.settings.messages.row
        return found if isinstance(found, int) else WHOLE

    @property
    def step_bits(self) -> int:
        """Bits a value of the server's step; `WHOLE` where clients are sent models, `LOW_RANK` for matrices of such."""
        found = self.settings.messages.step
        if found != "auto":
            return LOW_RANK if found == "low-rank" else found
        return SHORT_STEP if self._shortens and not any(self.model_needed()) else WHOLE

    @property
    def draws_anew(self) -> bool:
        """Whether what travels is rounded by draws of the round, so that the same is not sent twice."""
        drawn = self.step_bits not in (SHORT_STEP, WHOLE)
        return drawn or min(self.row_bits, self.sum_bits) < WHOLE

    @property
    def rounded(self) -> str:
        """What travels in fewer bits than it has, in words; empty where nothing does."""
        bits = {"rows": self.row_bits, "sums": self.sum_bits if self.masked else WHOLE, "steps": self.step_bits}
        few = {SHORT_STEP: "1 to 4 bits a value", LOW_RANK: "low rank"}
        return ", ".join(f"{what} in {few.get(n, f'{n} bits a value')}" for what, n in bits.items() if n < WHOLE)

    @cached_property
    def _shortens(self) -> bool:
        """Whether `auto` is short."""
        return self.settings.dtype == "float32" and not self.masked and self.method.shortens(self)

    def model_needed(self) -> Iterator[str]:
        """Why steps cannot be sent in place of models, each with what to do."""
        if self.works_on_line:
            takers = [f"method {part.method.name!r}" for part in self.parts if part.work.wants_step]
            what = takers[0] if takers else "curvature.kind 'secant' and curvature.previous 'recomputed'"
            yield (
                f" with {what}, whose clients train by the step that led to a model, and are told of it with the whole "
                "model alone; use 32"
            )
        if self.settings.attack.kind == "random":
            yield ", but attack.kind 'random' is made of the model that is sent; use 32, or another attack"

    @cached_property
    def differentiates_twice(self) -> bool:
        """Whether clients compute products with Hessians."""
        products = self.settings.curvature.kind == "hvp"
        return any(part.work.twice or (products and part.reads_curvature) for part in self.parts)
