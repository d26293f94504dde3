"""Any aggregator of TorchJD, by its name.

Quinton and Rey, "Jacobian Descent for Multi-Objective Optimization", 2024 (UPGrad, and the library); the papers of the
other aggregators are named in torchjd's own pages. Needs the extra `torchjd`.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.config.profiles import TORCHJD
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.methods._base import GramMethod, Method, RoundRows, State, VectorMethod
from dqnfed_flwr.methods.torchjd_calls import Calls
from dqnfed_flwr.types import Combination, RoundBatch

BASES = ("Aggregator", "WeightedAggregator", "GramianWeightedAggregator")
INSTALL = "pip install 'dqnfed-flwr[torchjd]'"
NOT_FINITE = "not-finite"
"""Status: the aggregator gave NaN or Inf; the step is zero."""


def torchjd_method(method: str, unit: float, seed: int) -> Method:
    """The method `torchjd:<name>`.

    Parameters
    ----------
    method : str
        With the name of an aggregator class of `torchjd.aggregation`, which is made with its default arguments.
    unit : float
        eta; 1 where the rows are displacements of local passes.
    seed : int
        Of the run, for aggregators that draw random numbers.

    Raises
    ------
    ConfigError
        If torchjd or a package that the aggregator needs is missing, if there is no such aggregator, or if it cannot
        be made without arguments.
    """
    aggregator = _make(method)
    if hasattr(aggregator, "gramian_weighting"):
        return TorchJdGram(Calls(method, aggregator, aggregator.gramian_weighting, seed), unit)
    return TorchJdRows(Calls(method, aggregator, aggregator, seed), unit)


def _make(method: str) -> Any:
    name = method.removeprefix(TORCHJD)
    try:
        library = import_module("torchjd.aggregation")
    except ImportError as error:
        raise ConfigError(f"method: {method} needs torchjd, which cannot be imported ({error}); {INSTALL}") from None
    known = {
        key: value
        for key, value in vars(library).items()
        if isinstance(value, type) and issubclass(value, library.Aggregator) and value.__name__ not in BASES
    }
    if name not in known:
        raise ConfigError(f"method: torchjd has no aggregator {name!r}; it has {', '.join(sorted(known))}")
    required = [
        parameter.name
        for parameter in inspect.signature(known[name]).parameters.values()
        if parameter.default is parameter.empty
    ]
    if required:
        raise ConfigError(
            f"method: {method} cannot be made without arguments, it needs {', '.join(required)}; take an aggregator "
            "that has defaults, or write a method of your own"
        )
    try:
        return known[name]()
    except ImportError as error:
        raise ConfigError(f"method: {method} needs more packages ({error}); {INSTALL}") from None


class TorchJdGram(GramMethod):
    """step = eta * weights @ rows, weights of the K x K Gramian in float64.

    Deviations: none from torchjd; its defaults stand. Its UPGrad and DualProj divide the Gramian by its trace, add
    1e-4 to the diagonal, and take equal weights where the trace is below 1e-4.

    Parameters
    ----------
    calls : Calls
        To the weighting.
    unit : float
        eta.
    """

    def __init__(self, calls: Calls, unit: float) -> None:
        self._calls, self._unit = calls, unit

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Open a round."""
        self._calls.begin(batch.clients)

    def weights(self, batch: RoundBatch) -> Combination:
        """eta * torchjd's weights; 0 with status `not-finite` where it gives none."""
        weights = self._calls(torch.from_numpy(batch.gram), batch.round).numpy().astype(np.float64)
        if not np.isfinite(weights).all():
            return Combination(np.zeros(weights.size), status=NOT_FINITE)
        return Combination(self._unit * weights)

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """The aggregator's memory, if it has one."""
        return self._calls.export()

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        self._calls.restore(state)


class TorchJdRows(VectorMethod):
    """step = eta * aggregator(rows), on the stacked rows [K, D] in their own dtype: a copy of all rows.

    Parameters
    ----------
    calls : Calls
        To the aggregator.
    unit : float
        eta.
    """

    def __init__(self, calls: Calls, unit: float) -> None:
        self._calls, self._unit = calls, unit

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Open a round."""
        self._calls.begin(batch.clients)

    def step(self, batch: RoundBatch, rows: RoundRows) -> Tensor:
        """eta * what torchjd makes of the rows [D]."""
        stacked = torch.from_numpy(np.stack([rows.basis.row(slot) for slot in rows.slots]))
        return self._unit * self._calls(stacked, batch.round).to(stacked.dtype)

    def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        """The step; 0 with status `not-finite` where torchjd gives none."""
        combination = super().combine(batch, rows)
        if np.isfinite(rows.basis.row(rows.basis.capacity - 1)).all():
            return combination
        rows.basis.put(rows.basis.capacity - 1, np.zeros(rows.basis.dim))
        return replace(combination, weights=np.zeros(rows.basis.capacity), status=NOT_FINITE)

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """The aggregator's memory, if it has one."""
        return self._calls.export()

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        self._calls.restore(state)
