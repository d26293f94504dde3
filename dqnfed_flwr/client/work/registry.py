"""Local work by name."""

from __future__ import annotations

from dqnfed_flwr.client.work._base import Bench, LocalWork
from dqnfed_flwr.client.work.plain import GradientWork, LbfgsWork, SgdWork
from dqnfed_flwr.config.profiles import Work

WORKS: dict[Work, type[LocalWork]] = {
    "gradient": GradientWork,
    "lbfgs": LbfgsWork,
    "sgd": SgdWork,
}


def make_work(bench: Bench) -> LocalWork:
    """A fresh object of the work that the settings name."""
    return WORKS[bench.settings.local_work](bench)
