"""Audits of clients made by hand, and small runs to audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dqnfed_flwr.audit.client_audit import ClientAudit, ModelFigures, PairFigures, loss_bound, rounded
from dqnfed_flwr.audit.weights import FEDERATED, AuditedRun, RunEnd, Weights
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.strategy.compatibility import Form
from dqnfed_flwr.types import Figure
from tests.helpers.runs import TINY

SMALL: dict[str, Any] = {**TINY, "split.samples": 300, "rounds": 3, "method": "fedavg", "local.batch-size": 16}
DIGESTS = {FEDERATED: "0" * 64, "start": "1" * 64, "local": "2" * 64, "FedAvg": "3" * 64}
END = RunEnd("finished", 3, 3, 1.0, 1.0)


def make_pair(only_federated: int, only_other: int, worse: float = 1.0, better: float = 1.0) -> PairFigures:
    return PairFigures(only_federated, only_other, 0.25, -0.5, 1.0, worse, better)


def make_audit(partition: int, examples: int = 40, **pairs: PairFigures) -> ClientAudit:
    """A client whose federated model has all right that the other has not wrong alone."""
    right = max(examples - 10, 0)
    models = {FEDERATED: ModelFigures(DIGESTS[FEDERATED], right, 0.75)}
    for name, pair in pairs.items():
        correct = right - (pair.only_federated or 0) + (pair.only_other or 0)
        models[name] = ModelFigures(DIGESTS[name], correct, 0.5)
    return ClientAudit("fedavg-0123456789ab", partition, examples, 9_999, rounded(loss_bound(10)), models, dict(pairs))


OWN = Figure("mae", higher=False)


def make_measured(partition: int, examples: int = 40, **chances: tuple[float, float]) -> ClientAudit:
    """A client of a task without right answers; of each other model the p-values for worse and better."""
    names = [FEDERATED, *chances]
    models = {name: ModelFigures(DIGESTS[name], None, 0.5 + 0.25 * (name == FEDERATED), 1.5) for name in names}
    pairs = {name: PairFigures(None, None, 0.25, -0.5, 1.0, *chance) for name, chance in chances.items()}
    return ClientAudit("fedavg-0123456789ab", partition, examples, 9_999, 3.0, models, pairs, OWN)


def pretended_run(clients: int = 3, figure: Figure | None = None) -> AuditedRun:
    """A run that `make_audit` could be of, or with the figure `OWN` `make_measured`."""

    class Pretended(AuditedRun):
        name = "fedavg-0123456789ab"

    class Zeros(Weights):
        digest = DIGESTS[FEDERATED]

    settings = Settings.from_mapping({"clients": clients})
    form = Form((1, 8, 8), "images", 10, 650)
    return Pretended(Path("nowhere"), settings, form, Zeros(np.zeros(650, np.float32), {}), None, END, figure, 1.5)


def leave_run(folder: Path, **changes: Any) -> Path:
    """A small finished run in a folder."""
    run({**SMALL, **changes, "output": str(folder)})
    return folder


def spoil(folder: Path) -> None:
    """Turn the model of a finished run round, so that it serves nobody."""
    with np.load(folder / "model.npz") as archive:
        arrays = {name: archive[name] for name in archive.files}
    np.savez(folder / "model.npz", allow_pickle=False, **{**arrays, "theta": -10 * arrays["theta"]})
