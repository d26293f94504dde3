"""Groups of settings that every method shares, from data and local work to messages and guarantee."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, field_validator

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.schema.group import About, Group, Numbers, Reads, setting
from dqnfed_flwr.schema.work import WorkProfile

PartitionName = Literal["iid", "shards", "dirichlet", "pathological", "one-class", "groups", "file"]
LocalWorkName = Literal["auto", "gradient", "sgd", "lbfgs"]
AttackKind = Literal["none", "random", "enlarged", "zero"]
_data, _experiment, _training = (partial(setting, about=about) for about in ("data", "experiment", "training"))
_machine, _protocol = partial(setting, about="machine", level="expert"), partial(setting, about="protocol")
_rare, _finer = partial(_data, level="expert"), partial(_training, level="expert")
_wire = partial(_protocol, level="expert")
_FUNCTION = re.compile(r"[\w.]+:\w+")


def _dealt(partition: str) -> Reads:
    """Where data are dealt out so; a function of the user's, `module:name`, may look at the settings of any."""
    return lambda run: run.settings.partition == partition or bool(_FUNCTION.fullmatch(run.settings.data))


def _worked(wanted: Callable[[WorkProfile], bool]) -> Reads:
    """Where some local work of the run is of that kind."""
    return lambda run: any(wanted(work) for work in run.works)


def _passing(wanted: Callable[[WorkProfile], bool]) -> Reads:
    """The same, or where the passes decide what the work is."""
    return lambda run: run.last.method.follows_passes(run.last) or any(wanted(work) for work in run.works)


def of_rule(rule: str, default: Any, description: str, *, about: About = "training", **limits: Any) -> Any:
    """A setting of one step rule, in a group that its file declares."""
    return setting(default, description, about=about, read=lambda run: run.rule.name == rule, **limits)


def _tested(run: Any) -> bool:
    """Where each client judges a step by its own test."""
    return bool(run.rule.judged_by == "test")


_of_test = partial(_training, read=_tested)
_tuned = partial(_of_test, level="expert")
_of_sgd = partial(_training, read=_worked(lambda work: work.passes))
_of_noise = partial(_data, read=lambda run: run.settings.noise.kind != "none")
_of_attack = partial(_experiment, read=lambda run: run.settings.attack.kind != "none")
_before = partial(_finer, read=lambda run: run.settings.start.epochs > 0)
_of_pairs = partial(_finer, read=lambda run: run.reads_curvature and run.settings.curvature.kind != "none")


class SplitSettings(Group):
    """How the data are dealt out to the clients."""

    alpha: float = _data(0.5, "Dirichlet concentration beta; small is skewed", read=_dealt("dirichlet"), gt=0)
    min_samples: int = _rare(10, "fewest samples of a client (dirichlet)", read=_dealt("dirichlet"), ge=2)
    shards: int = _data(2, "shards a client (shards)", read=_dealt("shards"), ge=1)
    classes: int = _data(2, "classes a client (pathological)", read=_dealt("pathological"), ge=1)
    merge: Numbers = _rare(
        "", "classes of each client, such as 1,2,2,2,3; empty for one each (one-class)", read=_dealt("one-class")
    )
    groups: int = _data(
        0,
        "natural groups used, drawn at random; 0 for every one (groups)",
        size="size or all",
        read=_dealt("groups"),
        ge=0,
    )
    min_group_samples: int = _rare(
        0,
        "fewest samples of a natural group that is used, training and test together (groups)",
        read=_dealt("groups"),
        ge=0,
    )
    samples: int = _data(0, "training samples used in all, 0 for every one", size="size or all", ge=0)
    only_classes: Numbers = _rare("", "classes used, such as 0,2,6, numbered anew in this order; empty for all")
    test_fraction: float = _data(
        0.2, "share of a client's samples that it tests on, where a set has no test part", gt=0, lt=1
    )
    validation_fraction: float = _data(
        0.0, "share of a client's training samples kept apart", changes="details", ge=0, lt=1
    )


class NoiseSettings(Group):
    """Wrong labels among those trained on."""

    kind: Literal["none", "symmetric", "pair"] = _data(
        "none", "no noise, any class in place of the right one, or the next class"
    )
    clients: float = _of_noise(0.5, "rho, probability that a client is noisy", ge=0, le=1)
    level: float = _of_noise(
        0.5, "tau: the share of labels that a noisy client has replaced is uniform from it to 1", ge=0, le=1
    )


class StartSettings(Group):
    """The model that round 1 begins at."""

    model: str = _training(
        "",
        "file to begin from, on the server: a run's model.npz, or .safetensors; empty draws it from the seed",
        path=True,
    )
    epochs: int = _training(
        0, "epochs of SGD on the data of one client alone before round 1, 0 for none (in process)", level="expert", ge=0
    )
    client: int = _before(0, "whose data these are", ge=0)
    lr: float = _before(0.1, "learning rate of these epochs", gt=0)
    batch_size: int = _before(50, "their mini-batch, 0 for the full batch", ge=0)


class AttackSettings(Group):
    """Hostile clients, for experiments."""

    kind: AttackKind = _experiment("none", "what hostile clients send for their row, see data.md (in process)")
    share: float = _of_attack(0.2, "share of the clients that is hostile, drawn from the seed", gt=0, lt=1)
    clients: Numbers = _of_attack("", "the hostile clients, such as 2,5,8, in place of a draw", level="expert")
    factor: float = _experiment(
        100.0,
        "by what enlarged multiplies the row; below 0 it is turned round as well",
        read=lambda run: run.settings.attack.kind == "enlarged",
        level="expert",
    )

    @property
    def listed(self) -> tuple[int, ...]:
        """`clients` as numbers; empty where they are drawn.

        Raises
        ------
        ConfigError
            If a word is no whole number from 0, or stands twice.
        """
        words = [word.strip() for word in self.clients.split(",")] if self.clients else []
        if not all(word.isdecimal() for word in words) or len(set(words)) < len(words):
            raise ConfigError(
                f"attack.clients: found {self.clients!r}; give different whole numbers from 0, such as 2,5,8"
            )
        return tuple(int(word) for word in words)


class LocalSettings(Group):
    """Work of a client in one round."""

    work: LocalWorkName = _training("auto", "gradient, epochs of SGD, or L-BFGS passes; auto asks the method")
    epochs: int = _training(1, "local passes E", read=_passing(lambda work: work.passes or work.epochs), ge=1)
    batch_size: int = _training(
        0, "mini-batch of local SGD, 0 for the full batch", read=_passing(lambda work: work.passes), ge=0
    )
    gradient_batch: int = _finer(
        0,
        "samples drawn for a gradient (work gradient and lbfgs), 0 for all; probed needs all",
        read=_worked(lambda work: not work.passes),
        ge=0,
    )
    lr: float = _training(0.1, "local learning rate; also the rate's scale when no curvature is known", gt=0)
    momentum: float = _of_sgd(0.0, "of local SGD", ge=0, lt=1)
    decay: float = _of_sgd(1.0, "the rate of local SGD in round t is lr * decay^(t-1)", gt=0, le=1)
    proximal: float = _of_sgd(0.0, "mu, pull of local SGD back to the received model (FedProx)", ge=0)
    gradient: Literal["final", "pseudo"] = _finer(
        "final",
        "after E L-BFGS passes: gradient at the end, or the displacement over the local rate",
        read=_worked(lambda work: work.name == "lbfgs"),
    )
    autocast: Literal["none", "bf16"] = _training(
        "none",
        "forward passes in the model's dtype, or in bfloat16 where torch finds that safe (float32 models); losses by "
        "which clients judge stay float32, for a forward pass more",
    )
    chunk: int = _machine(0, "samples a forward pass, bounding memory; 0 chooses", changes="details", ge=0)
    fused_attention: bool = _machine(
        False,
        "take torch's fused attention on CUDA: it keeps no matrix of all pairs of tokens, but its gradients differ in "
        "their last bits from run to run",
        changes="details",
    )
    workers: int = _machine(
        0, "processes that read data ahead where they are not held, a batch each; 0 for none", changes="details", ge=0
    )
    held_bytes: int = _machine(
        1 << 30,
        "a client's training, validation or test part of no more bytes is held in memory; a larger one is read in "
        "every pass, with the same bits",
        changes="details",
        ge=0,
    )
    threads: int = _machine(0, "torch threads of a client, 0 for all cores", changes="details", level="everyday", ge=0)
    together: int = _finer(
        0,
        "clients of the in-process engine whose gradients one pass computes (work gradient and lbfgs), 0 for each by "
        "itself; other last bits",
        ge=0,
        le=1000,
    )

    def averaged(self, samples: int) -> int:
        """Of so many samples of a client, those that its row is the mean of."""
        return min(samples, self.gradient_batch or samples)


class CurvatureSettings(Group):
    """The rate d~_k = g_k . B_k g_k (18)."""

    kind: Literal["none", "secant", "hvp"] = _training(
        "none",
        "pairs from successive models, from Hessian-vector products, or d~_k = lr |g_k|^2",
        read=lambda run: run.reads_curvature,
        level="expert",
    )
    previous: Literal["cached", "recomputed"] = _of_pairs("cached", "gradient at the pair's older model")
    memory: int = _of_pairs(1, "pairs kept, m", ge=1, le=100)
    damping: bool = _of_pairs(False, "Powell damping where s.y is too small, in place of leaving the pair out")


MAX_FALL_EACH = 0.05
"""With sampling, the share of the participants' mean loss that a step may promise to take, for each of them: the fewer
there are, the less they speak for the others."""


class StepSettings(Group):
    """How far to go along the method's step; `config.Settings` adds the settings that the rules declare."""

    judge: Literal["training", "held-out", "both"] = _of_test(
        "training",
        "losses by which a client judges a step: those it trains on, those of its validation part, or both (probed)",
    )
    armijo: float = _tuned(1e-4, "beta of the acceptance test (probed)", ge=0, lt=1)
    start: float = _tuned(1.0, "first factor alpha (probed)", gt=0)
    max_factor: float = _tuned(1024.0, "largest factor alpha (probed)", gt=0)
    max_fall: float = _tuned(
        0.0,
        "largest share of the participants' mean loss that the step may promise to take; 0 chooses: "
        f"{MAX_FALL_EACH} for each participant where clients are sampled, else any (probed)",
        ge=0,
    )
    min_move: float = _finer(
        1e-7,
        "smallest |alpha step| over |theta| before the model counts as stationary (probed)",
        read=lambda run: _tested(run) or run.settings.step.on_stationary == "relax",
        gt=0,
    )
    halvings: int = _tuned(
        6,
        "rungs below the candidate in one exchange (probed, without privacy.epsilon)",
        read=lambda run: _tested(run) and not run.private,
        ge=1,
        le=40,
    )
    ladder: Literal["auto", "always", "after-miss"] = _protocol(
        "auto",
        "when clients are sent the step, to find the rung that suits them: with every candidate, or, for less traffic "
        "and sometimes an exchange more, once one was turned down; auto: always, with models of two million parameters "
        "or more in round 1 and after a miss (probed)",
        on_resume=True,
        read=_tested,
        level="expert",
    )
    grow_every: int = _tuned(
        3,
        "probe twice the factor every so many rounds, and in each after a miss that cost more than a halving; 0 never "
        "(probed)",
        ge=0,
    )
    diagnose_every: int = _protocol(
        0,
        "every so many rounds participants also report their training losses at four times the step's first length and "
        "at halves of that down to 1/256 of it, for dqnfed diagnose; 0 never",
        changes="nothing",
        on_resume=True,
        ge=0,
        level="expert",
    )
    probe_first: bool = _tuned(
        False,
        "settle each length by losses alone, at the factor of the round before and twice that, before anybody trains: "
        "two exchanges a round, and none whose training is lost (probed)",
    )
    on_stationary: Literal["stop", "stay", "relax"] = _training(
        "stop",
        "no common descent step: end the run (with sampling: skip the round), skip the round, or take the step that "
        "lowers the mean loss",
    )
    patience: int = _finer(
        10,
        "rounds in a row without a step, and without a certificate that the model is stationary, after which the run "
        "ends as stalled; so does one that never moved its model; 0: never",
        on_resume=True,
        ge=0,
    )


LONGEST_NORM, LONGEST_OF_LIARS = 8.0, 1.0
"""Rows are cut to so many times the median norm of the round before they make an anchor or a rate; the second where
some of them may be a liar's."""
SHARE = "%"
"""Ends an entitlement that is a share of the typical loss."""


def _as_text(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


class RowsSettings(Group):
    """Where the server keeps the rows of a round."""

    device: Literal["auto", "host", "device"] = _machine(
        "auto",
        "the server's memory, or the device of clients that share its process, with model and steps; auto is the "
        "device where that is a CUDA card, the rows take at most a quarter of it, and steps are whole",
        changes="details",
    )

    memory: int = _machine(
        1 << 32,
        "bytes of the server's rows, K * D values, above which they lie in a file in the output directory (without "
        "one, of temporary files)",
        changes="nothing",
        on_resume=True,
        ge=0,
    )


WHOLE, SHORT_ROW, SHORT_STEP, LOW_RANK = 32, 6, 2, 0
"""Bits of a value that is sent as it is, of those of rows and steps that are shortened by default; 0 stands for steps
in low rank, which are not of so many bits a value."""


class MessagesSettings(Group):
    """In how many bits a value vectors travel."""

    row: Literal["auto", 4, 6, 8, 16, 32] = _wire(
        "auto",
        "bits a value of a client's row: float32 as it is, bfloat16, or whole numbers in blocks with a scale; in "
        "privacy.mode masked of the words of a sum, 32 or 16; auto is 6 where that was measured, see scale.md",
    )
    step: Literal["auto", "low-rank", 2, 4, 8, 16, 32] = _wire(
        "auto",
        "the same of the server's step; below 32 a client keeps the model and is sent the step alone, which the server "
        "rounds before it is tested; 2 is 1 to 4, as few as every client's descent allows; low-rank is matrices of "
        "rank 1, 2, 4, 8 or 16, as low as that allows; auto is 2 where auto of rows is 6 and no client needs the model",
    )


_of_records = partial(_wire, read=lambda run: run.private)


class PrivacySettings(Group):
    """What of a client the server sees."""

    mode: Literal["open", "masked"] = setting(
        "open",
        "what the server sees of clients: each gradient, or inner products and one sum a model, see privacy.md",
        about="protocol",
    )
    min_samples: int = _wire(
        256,
        "samples, counted by their weights, that the one sum must be of; a real node does not go below its own number "
        "(masked)",
        read=lambda run: run.masked,
        ge=1,
    )
    epsilon: float = setting(
        0.0,
        "differential privacy of each record for a whole run, with mode masked: epsilon, such as 3; 0 is none",
        about="protocol",
        ge=0,
    )
    delta: float = _of_records(1e-5, "delta: well below 1 over a client's number of records", gt=0, lt=1)
    clip: float = _of_records(1.0, "C: the gradient of a single record is cut to this norm", gt=0)
    largest_loss: float = _of_records(5.0, "B: the loss of a single record is cut to it, where it is told", gt=0)
    min_records: int = _of_records(
        10_000, "training records that a client must have; with fewer, noise is larger than what it hides", ge=1
    )


class GuaranteeSettings(Group):
    """What is promised to the clients, and against how many of them; see `docs/admission.md`."""

    entitlement: Annotated[str, BeforeValidator(_as_text)] = _of_test(
        "50%",
        "loss below which a client counts as served and may rise, but not above: a share of the round's "
        "typical loss, such as 50%, or a loss, such as 0.1; 0 lets no loss rise at all, as in the paper",
    )
    tolerate: float = _of_test(
        0.0,
        "f, clients of those asked in a round that may lie: a number, or below 1 a share of them; so many "
        "can be overruled for a round, and are named",
        ge=0,
    )
    window: int = _tuned(
        1,
        "W: a loss above the entitlement may come up to the largest of that client's last W losses, instead of the "
        "last one; 1 lets none of them rise in any round (probed)",
        ge=1,
    )
    held_out_level: float = _finer(
        0.1,
        "chance that a client whose held-out loss never rises is the cause of a refusal in a run, with step.judge",
        read=lambda run: run.judges_held_out,
        gt=0,
        lt=1,
    )
    voters: float = _finer(
        0.5, "share of a round's participants that must judge its step, else it is tried again", gt=0, le=1
    )
    confirm: int = _finer(
        0,
        "above 0 the result is the last model that every client has confirmed, also who is late or was not asked; "
        "after so many refusals in a row the run goes back to it",
        ge=0,
    )

    @field_validator("entitlement")
    @classmethod
    def _check_entitlement(cls, text: str) -> str:
        try:
            value = float(text.strip().removesuffix(SHARE))
            fit = math.isfinite(value) and (value >= 0 or not text.strip().endswith(SHARE))
        except ValueError:
            fit = False
        if not fit:
            raise ValueError(
                f"found {text!r}; give a loss, such as 0.1, or a share of the round's typical loss, such as 50%"
            )
        return text

    @field_validator("tolerate")
    @classmethod
    def _check_tolerate(cls, number: float) -> float:
        if number >= 1 and number != int(number):
            raise ValueError(f"found {number:g}; give a whole number of clients, or a share of them below 1")
        return number

    @property
    def level_and_share(self) -> tuple[float, float]:
        """`entitlement` as a loss and a share of the typical loss, of which one is 0."""
        text = self.entitlement.strip()
        value = float(text.removesuffix(SHARE))
        return (0.0, value / 100) if text.endswith(SHARE) else (value, 0.0)

    def longest(self, asked: int) -> float:
        """So many times the median norm of a round is a row cut to; fewer where some of those asked may lie."""
        return LONGEST_OF_LIARS if self.liars(asked) else LONGEST_NORM

    def liars(self, asked: int) -> int:
        """f among so many clients asked, always fewer than half of them."""
        return min(self._tolerated(asked), max((asked - 1) // 2, 0))

    def is_cut(self, asked: int) -> bool:
        """Whether fewer of so many clients asked can be overruled than `tolerate` says, or none by its share."""
        return self.tolerate > 0 and self.liars(asked) < max(self._tolerated(asked), 1)

    def _tolerated(self, asked: int) -> int:
        return int(self.tolerate) if self.tolerate >= 1 else int(self.tolerate * asked + 1e-9)

    def needed(self, participants: int) -> int:
        """How many of a round's participants must judge its step, one at least."""
        return max(math.ceil(self.voters * participants - 1e-9), 1)
