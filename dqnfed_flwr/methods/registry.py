"""Methods by name."""

from __future__ import annotations

from collections.abc import Callable

from dqnfed_flwr.config import Settings
from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.methods.dqn_fed import dqn_fed
from dqnfed_flwr.methods.fedavg import FedAvg, FedSgd
from dqnfed_flwr.methods.mgda import Mgda

METHODS: dict[str, Callable[[Settings], Method]] = {
    "dqn-fed": lambda settings: dqn_fed(settings.dqn_fed, settings.reference),
    "fedavg": lambda settings: FedAvg(),
    "fedsgd": lambda settings: FedSgd(settings.unit),
    "mgda": lambda settings: Mgda(settings.unit),
}


def make_method(settings: Settings) -> Method:
    """A fresh method as `settings.method` names it."""
    return METHODS[settings.method](settings)
