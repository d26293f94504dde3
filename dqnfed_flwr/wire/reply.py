"""A client's reply: vectors and figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from dqnfed_flwr.errors import WireError
from dqnfed_flwr.types import ClientReply, ClientTask, Extras, FloatArray, Probe
from dqnfed_flwr.wire.arrays import Array, view
from dqnfed_flwr.wire.figures import (
    FigureValues,
    figures_of,
    read_evaluation,
    read_probe,
    write_evaluation,
    write_probe,
)
from dqnfed_flwr.wire.records import BUFFER, EXTRA, FIGURES, VECTORS, Buffers, check_keys, floats, of_kind

FLOATS = ("float32", "float64")
VARIANCE = "running_var"
"""Ends the name of torch's buffer of variances."""


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
        What comes beside the gradient.
    """

    dim: int
    buffers: Buffers
    extras: Extras = field(default_factory=Extras)


def encode_reply(reply: ClientReply) -> RecordDict:
    """Content of a client's reply."""
    vectors = ArrayRecord()
    if reply.row is not None:
        vectors["gradient"] = Array(reply.row)
    for name, vector in reply.vectors.items():
        vectors[EXTRA + name] = Array(vector)
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
        figures |= write_probe(reply.probe)
    for part, counts in (("test", reply.test), ("validation", reply.validation)):
        if counts is not None:
            figures |= write_evaluation(counts, part)
    return figures


def change_row(content: RecordDict, change: Callable[[FloatArray], FloatArray]) -> None:
    """Replace the row of a reply, where it brings one, by what `change` makes of it."""
    vectors = of_kind(content, ArrayRecord).get(VECTORS)
    if vectors is not None and "gradient" in vectors:
        vectors["gradient"] = Array(change(floats(vectors["gradient"].numpy())))


def decode_reply(content: RecordDict, task: ClientTask, form: ReplyForm) -> ClientReply:
    """Read and check what a client answered to `task`.

    Raises
    ------
    WireError
        With the reason under which the reply is counted: `missing-key`, `extra-key`, `bad-dtype`, `bad-shape`,
        `bad-array`, `not-finite`, `bad-buffer`, `bad-loss`, `bad-rate`, `bad-count`, `bad-figure`, `bad-probe`.

    Notes
    -----
    The vectors are not searched for NaN and Inf here: whoever forms the gradient's norm sees it there for nothing.
    """
    figures = figures_of(content)
    arrays = of_kind(content, ArrayRecord)
    check_keys("array records", set(arrays), {VECTORS})
    check_keys("metric and config records", set(content) - set(arrays), {FIGURES})
    num_examples = figures.count("num-examples", least=1)
    seconds = figures.number("seconds")
    vectors = arrays[VECTORS]
    probe = read_probe(figures, task) if task.probe else None
    test = read_evaluation(figures, "test") if task.evaluate else None
    validation = read_evaluation(figures, "validation") if task.evaluate and "validation-loss" in figures else None
    if not task.train:
        return ClientReply(num_examples, probe=probe, test=test, validation=validation, seconds=seconds)
    wanted = form.extras
    expected = {"gradient"} | {EXTRA + name for name in wanted.vectors} | {BUFFER + name for name in form.buffers}
    check_keys("vectors", set(vectors), expected)
    rate = figures.number("rate")
    if rate < 0:
        raise WireError("bad-rate", f"rate {rate}; a rate is not negative")
    return ClientReply(
        num_examples=num_examples,
        row=floats(view(vectors["gradient"], (form.dim,), FLOATS)),
        vectors={name: floats(view(vectors[EXTRA + name], shape, FLOATS)) for name, shape in wanted.vectors.items()},
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


def decode_probe(content: RecordDict, task: ClientTask) -> Probe | None:
    """What a reply says of the candidate, None if it was not asked; readable even where the rest is unfit.

    A client whose loss is NaN or Inf at the candidate has no gradient there to be of use, yet its word counts most.

    Raises
    ------
    WireError
        If the figures cannot be read.
    """
    return read_probe(figures_of(content), task) if task.probe else None


def decode_loss(content: RecordDict, task: ClientTask) -> float | None:
    """f_k at the model sent, None if it was not asked or cannot be read; readable even where the row is unfit.

    A client whose row is of no use is a participant all the same: its loss after the step is held against this one.
    """
    try:
        return figures_of(content).loss("loss") if task.train else None
    except WireError:
        return None


def _read_buffer(name: str, array: FlowerArray, current: NDArray[np.generic]) -> NDArray[np.generic]:
    values = view(array, current.shape, (str(current.dtype),))
    if not np.isfinite(values).all():
        raise WireError("not-finite", "a buffer of the model holds NaN or Inf")
    if name.endswith(VARIANCE) and (np.minimum(values, 0) != 0).any():
        raise WireError("bad-buffer", f"{name} holds {np.min(values):.3g}; a variance is not negative")
    return values
