"""Local work by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dqnfed_flwr.client.round_memory import RoundMemory
from dqnfed_flwr.client.work._base import Bench, LocalWork
from dqnfed_flwr.client.work.ditto import DittoWork
from dqnfed_flwr.client.work.fedcorr import FedCorrWork
from dqnfed_flwr.client.work.fednew import FedNewWork
from dqnfed_flwr.client.work.fednl import FedNlWork
from dqnfed_flwr.client.work.newton import NewtonWork
from dqnfed_flwr.client.work.plain import GradientWork, LbfgsWork, SgdWork
from dqnfed_flwr.client.work.propfair import PropFairWork
from dqnfed_flwr.config.profiles import Work


def _fedcorr(bench: Bench) -> LocalWork:
    memory = RoundMemory(bench.memory.dtype, bench.memory.device)
    return FedCorrWork(bench, make_work(replace(bench, settings=bench.settings.stage_settings, memory=memory)))


WORKS: dict[Work, Callable[[Bench], LocalWork]] = {
    "gradient": GradientWork,
    "lbfgs": LbfgsWork,
    "sgd": SgdWork,
    "newton": NewtonWork,
    "fednew": FedNewWork,
    "fednl": FedNlWork,
    "ditto": DittoWork,
    "fedcorr": _fedcorr,
    "propfair": PropFairWork,
}


def make_work(bench: Bench) -> LocalWork:
    """A fresh object of the work that the settings name."""
    return WORKS[bench.settings.local_work](bench)
