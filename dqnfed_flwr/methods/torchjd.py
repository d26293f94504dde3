"""Any aggregator of TorchJD, by its name.

Quinton and Rey, "Jacobian Descent for Multi-Objective Optimization", 2024 (UPGrad, and the library); the papers of the
other aggregators are named in torchjd's own pages. Needs the extra `torchjd`.
"""

from __future__ import annotations

import copy
import inspect
import math
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import ConfigError, RunError
from dqnfed_flwr.methods._base import GramMethod, Method, RoundRows, State, VectorMethod
from dqnfed_flwr.schema.plan import GRADIENTS_FIRST, Profile, RunPlan
from dqnfed_flwr.types import Combination, RoundBatch, Sees

if TYPE_CHECKING:
    from torch import Tensor

TORCHJD = "torchjd:"
"""Before the name of an aggregator."""
BASES = ("Aggregator", "WeightedAggregator", "GramianWeightedAggregator")
INSTALL = "pip install 'dqnfed-flwr[torchjd]'"
NOT_FINITE = "not-finite"
"""Status: the aggregator gave NaN or Inf; the step is zero."""


def torchjd_profile(name: str) -> Profile:
    """The declaration of `torchjd:<name>`, whether or not there is such an aggregator: `build` sees that."""
    return Profile(
        name=name,
        title=f"{name.removeprefix(TORCHJD)} (torchjd)",
        works=GRADIENTS_FIRST,
        one_gradient="the library's aggregators are defined on the losses' Jacobian",
        build=torchjd_method,
    )


def torchjd_method(run: RunPlan) -> Method:
    """The method `torchjd:<name>`, name being that of an aggregator class, which is made with its default arguments.

    Raises
    ------
    ConfigError
        If torchjd or a package that the aggregator needs is missing, if there is no such aggregator, or if it cannot
        be made without arguments.
    """
    aggregator = _make(run.method.name)
    if hasattr(aggregator, "gramian_weighting"):
        return TorchJdGram(run, Calls(run.method.name, aggregator, aggregator.gramian_weighting, run.settings.seed))
    return TorchJdRows(run, Calls(run.method.name, aggregator, aggregator, run.settings.seed))


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


class TorchJd(Method):
    """An aggregator of torchjd, called once a round."""

    def __init__(self, run: RunPlan, calls: Calls) -> None:
        super().__init__(run)
        self._calls = calls
        self._memories = (calls,)

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Open a round."""
        self._calls.begin(batch.clients)


class TorchJdGram(TorchJd, GramMethod):
    """step = eta * weights @ rows, weights of the K x K Gramian in float64.

    Deviations: none from torchjd; its defaults stand. Its UPGrad and DualProj divide the Gramian by its trace, add
    1e-4 to the diagonal, and take equal weights where the trace is below 1e-4.
    """

    def weights(self, batch: RoundBatch) -> Combination:
        """eta * torchjd's weights; 0 with status `not-finite` where it gives none."""
        import torch

        weights = self._calls(torch.from_numpy(batch.gram), batch.round).numpy().astype(np.float64)
        if not np.isfinite(weights).all():
            return Combination(np.zeros(weights.size), status=NOT_FINITE)
        return Combination(self._row_lr * weights)


class TorchJdRows(TorchJd, VectorMethod):
    """step = eta * aggregator(rows), on the stacked rows [K, D] in their own dtype: a copy of all rows."""

    sees = Sees.PRODUCTS | Sees.COLUMNS

    def step(self, batch: RoundBatch, rows: RoundRows) -> Tensor:
        """eta * what torchjd makes of the rows [D]."""
        import torch

        stacked = torch.from_numpy(np.stack(rows.copies()))
        return self._row_lr * self._calls(stacked, batch.round).to(stacked.dtype)

    def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        """The step; 0 with status `not-finite` where torchjd gives none."""
        combination = super().combine(batch, rows)
        if math.isfinite(rows.squared_norm(rows.capacity - 1)):
            return combination
        rows.drop(rows.capacity - 1)
        return replace(combination, weights=np.zeros(rows.capacity), status=NOT_FINITE)


class Calls:
    """Calls to an aggregator: seeded by the round, and repeatable within it.

    An aggregator with a memory is asked as it stood before the round; what it remembers of the call counts from the
    next round on. Its memory is by position, so it is forgotten when other clients take part. `part` is what is called:
    the aggregator itself, or its weighting.
    """

    def __init__(self, method: str, aggregator: Any, part: Any, seed: int) -> None:
        self._method, self._seed = method, seed
        self._pair = self._after = (aggregator, part)
        self._stateful = hasattr(aggregator, "reset")
        self._clients: tuple[int, ...] = ()
        self._shape: tuple[int, ...] = ()

    def begin(self, clients: tuple[int, ...]) -> None:
        """Open a round."""
        self._pair = self._after
        if self._stateful and clients != self._clients:
            self._pair[0].reset()
        self._clients = clients

    def __call__(self, values: Tensor, round_number: int) -> Tensor:
        """What the aggregator, or its weighting, makes of rows or Gramian."""
        import torch

        from dqnfed_flwr.randomness import seeded

        pair = copy.deepcopy(self._pair) if self._stateful else self._pair
        words = np.random.SeedSequence((self._seed, round_number)).generate_state(1, np.uint64)
        with torch.no_grad(), seeded(int(words[0]) >> 1):
            try:
                made = pair[1](values)
            except (ValueError, RuntimeError) as error:
                raise RunError(
                    f"{self._method} failed in round {round_number} on {len(values)} rows: {error}"
                ) from error
        self._after, self._shape = pair, tuple(values.shape)
        return torch.as_tensor(made)

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """The memory, if there is one: tensors and whole numbers of the modules, and what they were made for."""
        if not self._stateful or not self._shape:
            return {}
        from torch import Tensor

        state: dict[str, NDArray[np.generic]] = {"clients": np.array(self._clients), "shape": np.array(self._shape)}
        for path, module in self._after[0].named_modules():
            for name, value in (*module.named_buffers(recurse=False), *vars(module).items()):
                if isinstance(value, Tensor):
                    state[f"{path}/{name}"] = value.numpy().copy()
                elif type(value) is int:
                    state[f"{path}/{name}"] = np.array(value)
        return state

    def restore_state(self, state: State) -> None:
        """Inverse of `export_state`; a call on values of the same shape prepares the modules."""
        if "shape" not in state:
            return
        import torch

        self._clients = tuple(int(client) for client in state["clients"])
        dtype = next((torch.from_numpy(v).dtype for k, v in state.items() if "/" in k and v.dtype.kind == "f"), None)
        self(torch.ones(*(int(size) for size in state["shape"]), dtype=dtype or torch.float64), 0)
        modules = dict(self._after[0].named_modules())
        for key, value in state.items():
            path, slash, name = key.rpartition("/")
            if not slash:
                continue
            kept = value.item() if type(getattr(modules[path], name)) is int else torch.from_numpy(np.array(value))
            setattr(modules[path], name, kept)


FAMILIES = {TORCHJD: torchjd_profile}
