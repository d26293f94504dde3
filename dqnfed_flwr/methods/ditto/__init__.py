"""Ditto: a global model as FedAvg makes it, and a personal model on every client.

Li, Hu, Beirami and Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, Algorithm 1.

The server's half is FedAvg's. The personal models never leave the clients (`client.py`); fairness is read on
them, since each client reports the accuracy of its own.

Deviations from the paper: every client present counts by its share of samples, where Algorithm 1 draws them alike and
averages evenly. From published code, some of which trains no personal model at all: none beyond.
"""

from __future__ import annotations

from dqnfed_flwr.methods.fedavg import FedAvg
from dqnfed_flwr.schema.group import Group, own
from dqnfed_flwr.schema.plan import Profile
from dqnfed_flwr.schema.work import WorkProfile


class DittoSettings(Group):
    """Ditto."""

    weight: float = own(1.0, "lambda, pull of the global model on the personal one", ge=0)


METHODS = (
    Profile(
        name="ditto",
        title="Ditto",
        settings=DittoSettings,
        build=FedAvg,
        works=(WorkProfile("ditto", "dqnfed_flwr.methods.ditto.client:DittoWork", passes=True),),
        personal=True,
    ),
)
