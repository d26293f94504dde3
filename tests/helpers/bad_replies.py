"""Every way in which a client's reply may be unfit, and the reason under which it must be counted."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ConfigRecord, Message, MetricRecord
from numpy.typing import NDArray

from dqnfed_flwr.wire import FIGURES, VECTORS

Meddle = Callable[[Message], Message]


def figure(key: str, change: Any) -> Meddle:
    """Change a figure; `change` is its new value, or makes one of the old, or None to take it away."""

    def meddle(reply: Message) -> Message:
        figures = reply.content.metric_records[FIGURES]
        if key not in figures:
            return reply
        if change is None:
            del figures[key]
        else:
            figures[key] = change(figures[key]) if callable(change) else change
        return reply

    return meddle


def vector(change: Callable[[NDArray[np.float64]], NDArray[Any] | FlowerArray], key: str = "gradient") -> Meddle:
    """Put what `change` makes of the gradient under `key`."""

    def meddle(reply: Message) -> Message:
        vectors = reply.content.array_records[VECTORS]
        if any(name.startswith("gradient.") for name in vectors):
            raise ValueError("only whole rows are meddled with: set messages.row to 32")
        if "gradient" in vectors:
            changed = change(vectors["gradient"].numpy().astype(np.float64))
            vectors[key] = changed if isinstance(changed, FlowerArray) else FlowerArray(changed)
        return reply

    return meddle


def claiming(shape: tuple[int, ...], dtype: str = "float64") -> Callable[[NDArray[np.float64]], FlowerArray]:
    """An array that says it has this shape and dtype, and holds another."""
    return lambda values: FlowerArray(dtype=dtype, shape=shape, stype="numpy.ndarray", data=saved(values))


def saved(values: NDArray[Any]) -> bytes:
    """As np.save writes it."""
    stream = io.BytesIO()
    np.save(stream, values, allow_pickle=False)
    return stream.getvalue()


def at(place: int, value: float) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Replace one value."""

    def change(values: NDArray[np.float64]) -> NDArray[np.float64]:
        values = values.copy()
        values[place] = value
        return values

    return change


def _without(record: str) -> Meddle:
    def meddle(reply: Message) -> Message:
        del reply.content[record]
        return reply

    return meddle


def _with(record: str, content: ConfigRecord | MetricRecord) -> Meddle:
    def meddle(reply: Message) -> Message:
        reply.content[record] = content
        return reply

    return meddle


def _raise(reply: Message) -> Message:
    raise ZeroDivisionError("the client's own mistake")


BAD_TRAINING: dict[str, tuple[Meddle, str]] = {
    "a gradient with NaN": (vector(at(0, np.nan)), "not-finite"),
    "a gradient with Inf": (vector(at(-1, -np.inf)), "not-finite"),
    "a gradient whose norm overflows": (vector(lambda g: np.full_like(g, 1e200)), "not-finite"),
    "a gradient whose products overflow": (vector(lambda g: np.full_like(g, 1e150)), "not-finite"),
    "a gradient too short": (vector(lambda g: g[:-1]), "bad-shape"),
    "a gradient too long": (vector(lambda g: np.append(g, 0)), "bad-shape"),
    "a gradient of one value, which broadcasts": (vector(lambda g: g[:1]), "bad-shape"),
    "a gradient of one row, which broadcasts": (vector(lambda g: g[None]), "bad-shape"),
    "a gradient of one column": (vector(lambda g: g[:, None]), "bad-shape"),
    "a gradient of no dimension": (vector(lambda g: np.array(1.0)), "bad-shape"),
    "a gradient stored by columns": (vector(lambda g: np.asfortranarray(np.outer(g, g))), "bad-shape"),
    "a complex gradient": (vector(lambda g: g.astype(complex)), "bad-dtype"),
    "a gradient of integers": (vector(lambda g: g.astype(np.int64)), "bad-dtype"),
    "a gradient of bool": (vector(lambda g: g > 0), "bad-dtype"),
    "a gradient in half precision": (vector(lambda g: g.astype(np.float16)), "bad-dtype"),
    "a gradient in the other byte order": (vector(lambda g: g.astype(">f8")), "bad-dtype"),
    "a gradient of text": (vector(lambda g: g.astype(str)), "bad-dtype"),
    "a gradient that claims to hold objects": (vector(claiming((6,), "object")), "bad-dtype"),
    "a gradient that claims 10 GB": (vector(claiming((1_342_177_280,))), "bad-shape"),
    "a gradient that claims a negative size": (vector(claiming((-1,))), "bad-shape"),
    "a gradient that holds less than it claims": (vector(lambda g: claiming((6,))(g[:3])), "bad-shape"),
    "a gradient whose dtype is not what it claims": (
        vector(lambda g: claiming((6,))(g.astype(np.float16))),
        "bad-dtype",
    ),
    "no vector": (_without(VECTORS), "missing-key"),
    "one vector too many": (vector(lambda g: g, key="more"), "extra-key"),
    "one record too many": (_with("more", MetricRecord({"x": 1.0})), "extra-key"),
    "settings of its own": (_with("more", ConfigRecord({"lr": 1.0})), "extra-key"),
    "no figures": (_without(FIGURES), "missing-key"),
    "no loss": (figure("loss", None), "missing-key"),
    "a loss that is NaN": (figure("loss", np.nan), "not-finite"),
    "a loss below nothing": (figure("loss", -1e4), "below-floor"),
    "a loss that is a list": (figure("loss", [1.0, 2.0]), "bad-shape"),
    "no rate": (figure("rate", None), "missing-key"),
    "a rate that is NaN": (figure("rate", np.nan), "not-finite"),
    "a rate that is Inf": (figure("rate", np.inf), "not-finite"),
    "a negative rate": (figure("rate", lambda rate: -rate), "bad-rate"),
    "no samples": (figure("num-examples", 0), "bad-count"),
    "fewer than no samples": (figure("num-examples", -10), "bad-count"),
    "a million million samples": (figure("num-examples", 10**12), "bad-count"),
    "half a sample": (figure("num-examples", 0.5), "bad-count"),
    "samples that are NaN": (figure("num-examples", np.nan), "not-finite"),
    "half a pair": (figure("pairs-kept", 0.5), "bad-count"),
    "an exception": (_raise, "client-error"),
}
"""Done to every reply from the first on."""


def _shapeless(values: NDArray[np.float64]) -> FlowerArray:
    array = FlowerArray(values)
    array.shape = ("six",)  # type: ignore[assignment]  # the fault
    return array


UNREADABLE: Meddle = vector(_shapeless)
"""An array that Flower itself cannot put together again."""


def _divert(key: str, change: Any) -> Meddle:
    def meddle(reply: Message) -> Message:
        figure("probe-holds", 0)(reply)
        reply.content.metric_records[FIGURES][key] = change
        return reply

    return meddle


BAD_PROBES: dict[str, tuple[Meddle, str]] = {
    "no loss at the candidate": (figure("probe-loss", None), "missing-key"),
    "no word on it": (figure("probe-holds", None), "missing-key"),
    "a word that is neither yes nor no": (figure("probe-holds", 2), "bad-count"),
    "a loss of NaN that is said to have fallen": (figure("probe-loss", np.nan), "not-finite"),
    "a list of losses": (figure("probe-loss", [1.0]), "bad-shape"),
    "a factor hardly below the candidate's": (_divert("probe-back-factor", 0.999), "bad-probe"),
    "a factor above the candidate's": (_divert("probe-back-factor", 64.0), "bad-probe"),
    "a negative factor": (_divert("probe-back-factor", -0.5), "bad-probe"),
    "a negative loss": (figure("probe-loss", -1e4), "below-floor"),
    "a factor that is NaN": (_divert("probe-back-factor", np.nan), "not-finite"),
}
"""Done to a client's second reply and those after: the first that speaks of a candidate."""

BAD_EVALUATIONS: dict[str, tuple[Meddle, str]] = {
    "more right answers than questions": (figure("test-correct", 1000), "bad-count"),
    "no number of questions": (figure("test-examples", None), "missing-key"),
    "a test loss of NaN": (figure("test-loss", np.nan), "not-finite"),
    "a negative test loss": (figure("test-loss", -1e-3), "below-floor"),
}
"""The same, where what is said of the candidate is sound."""
