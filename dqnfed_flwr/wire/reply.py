"""A client's reply: vectors, and figures, which are read with their range checked."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from dqnfed_flwr.errors import WireError
from dqnfed_flwr.guarantee.harm import below_floor
from dqnfed_flwr.types import ACCURACY, ClientReply, ClientTask, Evaluation, Extras, Figure, FloatArray, Probe
from dqnfed_flwr.wire.codecs import (
    BUFFER,
    EXTRA,
    FIGURES,
    KINDS,
    LOST_MODEL,
    VECTORS,
    WHOLE,
    Array,
    Buffers,
    check_keys,
    of_kind,
    strays,
    view,
)
from dqnfed_flwr.wire.rounding import Parts

VARIANCE = "running_var"
"""Ends the name of torch's buffer of variances."""
MAX_EXAMPLES = 10**9
LARGEST = 1e60
"""Size of a loss, and rate, at most: none of a client that learns is near it; squares and quotients stay finite."""
BELOW_FLOOR = "below-floor"
"""Reason under which a reply is counted that has a loss below the least value that the task names."""
FigureValues = dict[str, int | float | list[int] | list[float]]
"""Figures as they are written."""


@dataclass(frozen=True, slots=True)
class ReplyForm:
    """What the server expects of a reply: the form of its model.

    Attributes
    ----------
    dim : int
        D.
    buffers : Mapping[str, NDArray]
        The model's buffers: names, shapes and dtypes; empty where local work does not change them.
    extras : Extras
        What comes in addition to the gradient.
    figure : Figure
        The figure of a client that the task counts; accuracy follows from the right answers.
    floor : float | None
        The least value of a loss; None where it may have any.
    bits : int
        Bits a value of the row.
    """

    dim: int
    buffers: Buffers
    extras: Extras = field(default_factory=Extras)
    figure: Figure = ACCURACY
    floor: float | None = None
    bits: int = WHOLE


def encode_reply(reply: ClientReply) -> RecordDict:
    """Content of a client's reply."""
    vectors = ArrayRecord()
    if reply.row is not None:
        KINDS["row"].write(vectors, reply.coded or reply.row)
    further: dict[str, FloatArray | Parts] = {**reply.vectors, **reply.packed}
    for name, vector in further.items():
        KINDS["extra"].write(vectors, vector, name)
    for name, value in reply.buffers.items():
        vectors[BUFFER + name] = Array(value)
    return RecordDict({VECTORS: vectors, FIGURES: MetricRecord(_reply_figures(reply))})


def _reply_figures(reply: ClientReply) -> FigureValues:
    figures: FigureValues = {"num-examples": reply.num_examples, "seconds": reply.seconds}
    if reply.row is not None:
        figures |= {"loss": reply.loss, "rate": reply.rate}
        figures |= {"pairs-kept": reply.pairs_kept, "pairs-rejected": reply.pairs_rejected}
        figures |= {EXTRA + name: value for name, value in reply.figures.items()}
    if reply.probe is not None:
        figures |= _write_probe(reply.probe)
    for part, counts in (("test", reply.test), ("validation", reply.validation)):
        if counts is not None:
            figures |= _write_evaluation(counts, part)
    return figures


def decode_reply(content: RecordDict, task: ClientTask, form: ReplyForm) -> ClientReply:
    """Read and check what a client answered to `task`.

    Raises
    ------
    WireError
        With the reason under which the reply is counted: `lost-model`, `missing-key`, `extra-key`, `bad-dtype`,
        `bad-shape`, `bad-array`, `not-finite`, `bad-buffer`, `bad-loss`, `below-floor`, `bad-rate`, `bad-count`,
        `bad-figure`, `bad-probe`.

    Notes
    -----
    The vectors are not searched for NaN and Inf here: the gradient's norm, formed later, shows them at no cost.
    """
    figures = _figures_of(content, form.floor)
    arrays = of_kind(content, ArrayRecord)
    check_keys("array records", set(arrays), {VECTORS})
    check_keys("metric and config records", set(content) - set(arrays), {FIGURES})
    num_examples = figures.count("num-examples", least=1)
    seconds = figures.number("seconds")
    vectors = arrays[VECTORS]
    probe = _read_probe(figures, task) if task.probe else None
    test = _read_evaluation(figures, "test", form) if task.evaluate else None
    validation = (
        _read_evaluation(figures, "validation", form) if task.evaluate and "validation-loss" in figures else None
    )
    if not task.train:
        return ClientReply(num_examples, probe=probe, test=test, validation=validation, seconds=seconds)
    wanted, row, extra = form.extras, KINDS["row"], KINDS["extra"]
    bits = {name: wanted.bits.get(name, WHOLE) for name in wanted.vectors}
    further = (key for name in bits for key in extra.keys(name, bits[name]))
    check_keys(
        "vectors", set(vectors), {*row.keys(bits=form.bits), *further, *(BUFFER + name for name in form.buffers)}
    )
    rate = figures.number("rate")
    if not 0 <= rate <= LARGEST:
        raise WireError("bad-rate", f"rate {rate}; need 0 to {LARGEST:g}")
    values, error = row.read_row(vectors, (form.dim,), form.bits)
    return ClientReply(
        num_examples=num_examples,
        row=values,
        row_error=error,
        vectors={name: extra.read(vectors, shape, name, bits[name]) for name, shape in wanted.vectors.items()},
        figures={name: figures.within(EXTRA + name, wanted.limits.get(name)) for name in wanted.figures},
        buffers={name: _read_buffer(name, vectors[BUFFER + name], value) for name, value in form.buffers.items()},
        loss=figures.loss("loss"),
        rate=rate,
        probe=probe,
        test=test,
        validation=validation,
        pairs_kept=figures.count("pairs-kept"),
        pairs_rejected=figures.count("pairs-rejected"),
        seconds=seconds,
    )


def decode_probe(content: RecordDict, task: ClientTask, floor: float | None = None) -> Probe | None:
    """What a reply says of the candidate, None if it was not asked; readable even where the rest is unfit.

    A client whose loss is NaN or Inf at the candidate has no gradient there to be of use, yet its word counts most.
    `floor` is that of the `ReplyForm`.

    Raises
    ------
    WireError
        If the figures cannot be read.
    """
    return _read_probe(_figures_of(content, floor), task) if task.probe else None


def decode_loss(content: RecordDict, task: ClientTask, floor: float | None = None) -> float | None:
    """f_k at the model sent, None if it was not asked or cannot be read; readable even where the row is unfit.

    A client whose row is of no use is a participant all the same: its loss after the step is held against this one.
    `floor` is that of the `ReplyForm`.
    """
    try:
        return _figures_of(content, floor).loss("loss") if task.train else None
    except WireError:
        return None


def _read_buffer(name: str, array: FlowerArray, current: NDArray[np.generic]) -> NDArray[np.generic]:
    values = view(array, current.shape, (str(current.dtype),))
    if strays(values, current):
        raise WireError("not-finite", "a buffer of the model holds NaN, or Inf where it did not")
    if name.endswith(VARIANCE) and (np.minimum(values, 0) != 0).any():
        raise WireError("bad-buffer", f"{name} holds {np.min(values):.3g}; a variance is not negative")
    return values


class _Figures:
    """Reads the figures of a reply as received; each method checks one range and raises `WireError` outside it.

    No loss is below `floor`, None for any.
    """

    def __init__(self, record: MetricRecord, floor: float | None) -> None:
        self._record, self._floor = record, floor

    def __contains__(self, key: str) -> bool:
        """Whether there is such a figure."""
        return key in self._record

    def scalar(self, key: str) -> float:
        """Any one number, NaN and Inf among them."""
        value = self._value(key)
        if isinstance(value, list):
            raise WireError("bad-shape", f"{key} is a list of {len(value)}; need one number")
        return float(value)

    def number(self, key: str) -> float:
        """A finite number."""
        value = self.scalar(key)
        if not math.isfinite(value):
            raise WireError("not-finite", f"{key} is {value}")
        return value

    def within(self, key: str, limits: tuple[float, float] | None) -> float:
        """A finite number between two limits, which are allowed; None for any."""
        value = self.number(key)
        if limits is not None and not limits[0] <= value <= limits[1]:
            raise WireError("bad-figure", f"{key} is {value}; need {limits[0]:g} to {limits[1]:g}")
        return value

    def loss(self, key: str) -> float:
        """A loss of a size up to `LARGEST`."""
        value = self.number(key)
        if value > LARGEST:
            raise WireError("bad-loss", f"{key} is {value:g}; need {LARGEST:g} at most")
        return self._above_floor(key, value)

    def any_loss(self, key: str) -> float:
        """A loss; infinite where the model diverges."""
        value = self.scalar(key)
        return self._above_floor(key, value) if math.isfinite(value) else math.inf

    def losses(self, key: str) -> list[float]:
        """One loss or more; infinite where the model diverges."""
        value = self._value(key)
        found = [float(number) for number in value] if isinstance(value, list) else [float(value)]
        return [self._above_floor(key, number) if math.isfinite(number) else math.inf for number in found]

    def count(self, key: str, least: int = 0) -> int:
        """A whole number from `least` to `MAX_EXAMPLES`."""
        value = self.number(key)
        if value != int(value) or not least <= value <= MAX_EXAMPLES:
            raise WireError("bad-count", f"{key} is {value}; need a whole number from {least} to {MAX_EXAMPLES}")
        return int(value)

    def flag(self, key: str) -> bool:
        """0 or 1."""
        value = self.number(key)
        if value not in (0, 1):
            raise WireError("bad-count", f"{key} is {value}; need 0 or 1")
        return value == 1

    def _above_floor(self, key: str, loss: float) -> float:
        if loss < -LARGEST:
            raise WireError("bad-loss", f"{key} is {loss:g}; need {-LARGEST:g} at least")
        if below_floor(loss, self._floor):
            raise WireError(BELOW_FLOOR, f"{key} is {loss:.6g}, below {self._floor:g}, the floor of the task")
        return loss

    def _value(self, key: str) -> int | float | list[int] | list[float]:
        if key not in self._record:
            raise WireError("missing-key", f"figures {sorted(self._record)[:20]}; need {key!r}")
        return self._record[key]


def _figures_of(content: RecordDict, floor: float | None) -> _Figures:
    """The figures of a reply, which must have some."""
    figures = of_kind(content, MetricRecord).get(FIGURES)
    if LOST_MODEL in content:
        raise WireError(LOST_MODEL, "it has not the model that the message builds on; it is sent the whole model next")
    if figures is None:
        raise WireError("missing-key", f"records {sorted(content)[:8]}; need {VECTORS!r} and {FIGURES!r}")
    return _Figures(figures, floor)


def _write_probe(probe: Probe) -> FigureValues:
    """Figures of a probe."""
    figures: FigureValues = {"probe-loss": probe.loss, "probe-holds": int(probe.holds)}
    if probe.grown_holds is not None:
        figures["probe-grown-holds"] = int(probe.grown_holds)
    if probe.back_factor is not None and probe.back_loss is not None:
        figures |= {"probe-back-factor": probe.back_factor, "probe-back-loss": probe.back_loss}
    if probe.behind_loss is not None:
        figures["probe-behind-loss"] = probe.behind_loss
    if probe.held_out is not None:
        figures["probe-held-out"] = int(probe.held_out)
    if probe.losses:
        figures["probe-losses"] = list(probe.losses)
    return figures


def _read_probe(figures: _Figures, task: ClientTask) -> Probe:
    """Inverse of `_write_probe`, held against what `task` asked for."""
    held_out = figures.flag("probe-held-out") if "probe-held-out" in figures else None
    probe = replace(_read_test(figures, task), held_out=held_out)
    wanted = len(task.rungs)
    if not wanted:
        return probe
    losses = figures.losses("probe-losses")
    if len(losses) != wanted:
        raise WireError("bad-probe", f"probe-losses are {len(losses)}; the task asks for {wanted} rungs")
    return replace(probe, losses=tuple(losses))


def _read_test(figures: _Figures, task: ClientTask) -> Probe:
    if figures.flag("probe-holds"):
        grown = figures.flag("probe-grown-holds") if "probe-grown-holds" in figures else None
        return Probe(figures.loss("probe-loss"), True, grown)
    loss = figures.any_loss("probe-loss")
    behind = figures.any_loss("probe-behind-loss") if "probe-behind-loss" in figures else None
    if "probe-back-factor" not in figures:
        return Probe(loss, False, behind_loss=behind)
    back = figures.number("probe-back-factor")
    if back not in task.halved:
        raise WireError("bad-probe", f"probe-back-factor {back} is none of {task.halvings} halvings of {task.factor}")
    back_loss = figures.loss("probe-back-loss")
    return Probe(loss, False, back_factor=back, back_loss=back_loss, behind_loss=behind)


def _write_evaluation(counts: Evaluation, part: str) -> FigureValues:
    """Figures of an evaluation on `part`, `test` or `validation`."""
    figures: FigureValues = {f"{part}-correct": counts.correct, f"{part}-examples": counts.examples}
    figures[f"{part}-loss"] = counts.loss
    if counts.figures:
        figures[f"{part}-figure"] = counts.figure
    return figures


def _read_evaluation(figures: _Figures, part: str, form: ReplyForm) -> Evaluation:
    """Inverse of `_write_evaluation`; no more may be right than there is, and a figure of the task is within limits."""
    examples = figures.count(f"{part}-examples")
    correct = figures.count(f"{part}-correct")
    if correct > examples:
        raise WireError("bad-count", f"{part}: {correct} right of {examples}")
    loss = figures.loss(f"{part}-loss")
    if form.figure.counted:
        return Evaluation(correct, examples, loss)
    value = figures.scalar(f"{part}-figure")
    if not math.isnan(value):
        figures.within(f"{part}-figure", form.figure.limits)
    return Evaluation(correct, examples, loss, {form.figure.name: value})
