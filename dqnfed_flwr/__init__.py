"""DQN-Fed: fair and fast federated learning on Flower.

The names below are the public interface; each is imported when it is first used, so that a client process which needs
one of them does not pay for all.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dqnfed_flwr.client.numpy_client import DQNFedClient as DQNFedClient
    from dqnfed_flwr.config import Settings as Settings
    from dqnfed_flwr.engine.result import RunResult as RunResult
    from dqnfed_flwr.engine.run import run as run
    from dqnfed_flwr.errors import DQNFedError as DQNFedError
    from dqnfed_flwr.errors import StalledError as StalledError
    from dqnfed_flwr.fairness import fairness_report as fairness_report
    from dqnfed_flwr.functional import StepResult as StepResult
    from dqnfed_flwr.functional import minimum_norm_point as minimum_norm_point
    from dqnfed_flwr.functional import one_sided_step as one_sided_step
    from dqnfed_flwr.functional import two_sided_step as two_sided_step
    from dqnfed_flwr.guarded.local_task import LocalTask as LocalTask
    from dqnfed_flwr.guarded.mod import guard as guard
    from dqnfed_flwr.guarded.strategy import Guaranteed as Guaranteed
    from dqnfed_flwr.linalg.lbfgs import LBFGSHistory as LBFGSHistory
    from dqnfed_flwr.strategy.strategy import DQNFed as DQNFed
    from dqnfed_flwr.strategy.strategy import GradientStrategy as GradientStrategy
    from dqnfed_flwr.tasks import Datasets as Datasets
    from dqnfed_flwr.tasks import Task as Task
    from dqnfed_flwr.telemetry.events import Listener as Listener
    from dqnfed_flwr.telemetry.events import RoundEvent as RoundEvent

if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    # torch's OpenMP threads (libgomp) wait for each other by spinning, 300,000 turns at each small operation: two
    # processes with a thread for every core then take several times as long. It is read when torch is loaded.
    os.environ["GOMP_SPINCOUNT"] = "1000"

_HOMES = {
    "DQNFed": "strategy.strategy",
    "DQNFedClient": "client.numpy_client",
    "DQNFedError": "errors",
    "Datasets": "tasks",
    "GradientStrategy": "strategy.strategy",
    "Guaranteed": "guarded.strategy",
    "LBFGSHistory": "linalg.lbfgs",
    "Listener": "telemetry.events",
    "LocalTask": "guarded.local_task",
    "RoundEvent": "telemetry.events",
    "RunResult": "engine.result",
    "Settings": "config",
    "StalledError": "errors",
    "StepResult": "functional",
    "Task": "tasks",
    "fairness_report": "fairness",
    "guard": "guarded.mod",
    "minimum_norm_point": "functional",
    "one_sided_step": "functional",
    "run": "engine.run",
    "two_sided_step": "functional",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
