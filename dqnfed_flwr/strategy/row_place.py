"""Where the rows of a round lie: on the device of clients that share the process, in memory, or in a file."""

from __future__ import annotations

import math
from collections.abc import Callable
from logging import INFO
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from flwr.common.logger import log
from flwr.serverapp import Grid
from torch import Tensor

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.linalg.row_store import RowMemory
from dqnfed_flwr.linalg.rows import RowSet
from dqnfed_flwr.linalg.sketched_rows import SketchedRows
from dqnfed_flwr.masked.sketch import sketch_size
from dqnfed_flwr.masked.sums import rounding_slack
from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.run_files import private_folder
from dqnfed_flwr.schema.groups import WHOLE
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.schema.run import RunSettings
from dqnfed_flwr.strategy.checkpoint import output_directory
from dqnfed_flwr.telemetry.event_log import Patience
from dqnfed_flwr.types import Sees

PATIENCE = Patience()
SKETCHED_SLACK, EXACT_SLACK = 8.0, 1e-4
"""How far the squared length of a sum may be from what sketches of m numbers say, times sqrt(m); and what rows say."""
CARD_SHARE = 4
"""Rows are left on a card by themselves where so many of their arrays would fit."""


@runtime_checkable
class OneDevice(Protocol):
    """A grid whose clients compute in this process, all on one device."""

    def clients_device(self) -> torch.device:
        """Which that is."""


def rows_device(run: RunPlan, method: Method, dim: int, grid: Grid) -> torch.device | None:
    """Where rows, steps and model of D = `dim` lie by the setting `rows.device`; None for the host.

    `ConfigError` where a device is asked for, and clients do not share this process or it has no float64.
    """
    wanted, size = run.settings.rows.device, torch.finfo(getattr(torch, run.settings.dtype)).bits // 8
    device = grid.clients_device() if wanted != "host" and isinstance(grid, OneDevice) else None
    if wanted == "auto" and (run.masked or run.step_bits < WHOLE):  # sums and steps are made on the host
        if device is not None and device.type == "cuda" and not run.masked:
            log(INFO, "Short messages are made on the host; messages.row=32 and messages.step=32 keep rows on the card")
        return None
    if wanted == "device":
        if device is None or device.type == "mps":
            why = "the clients are not in this process" if device is None else "MPS has no float64"
            raise ConfigError(f"rows.device: found 'device', but {why}; use auto or host")
        return device
    if device is None or device.type != "cuda":
        return None
    rows = (run.settings.sampled + method.reference_rows) * dim * size
    return device if CARD_SHARE * rows <= torch.cuda.get_device_properties(device).total_memory else None


def rows_for(
    run: RunPlan, method: Method, theta: Tensor, patience: Patience = PATIENCE, device: torch.device | None = None
) -> RowSet:
    """Room for the rows of a round, for a model like `theta` [D]; on a `device`, or on the host; or for sketches."""
    if run.masked:
        size, references = sketch_size(theta.numel()), method.reference_rows
        slack = SKETCHED_SLACK / math.sqrt(size) if size < theta.numel() else EXACT_SLACK
        if run.sum_bits < WHOLE:
            slack += rounding_slack(theta.numel(), run.settings.sampled)
        return SketchedRows(run.settings.sampled + references, size, references, model=theta, slack=slack)
    return RowSet(
        run.settings.sampled + method.reference_rows,
        theta.numel(),
        theta.dtype,
        references=method.reference_rows,
        products=Sees.PRODUCTS in method.sees or run.rule.compares_slopes,
        memory=_row_memory(run.settings, patience, device),
    )


def _row_memory(settings: RunSettings, patience: Patience, device: torch.device | None) -> RowMemory:
    """A device, or the setting `rows.memory`; files lie beside the checkpoint."""

    def write(folder: Path, action: Callable[[], None]) -> None:
        def in_folder() -> None:
            private_folder(folder)
            action()

        patience.write(folder, in_folder)

    return RowMemory(settings.rows.memory, str(output_directory(settings) or ""), write, device)
