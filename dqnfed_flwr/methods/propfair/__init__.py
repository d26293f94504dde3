"""PropFair: local SGD on minus the logarithm of a client's utility.

Zhang, Malekmohammadi, Chen and Yu, "Proportional Fairness in Federated Learning", TMLR 2023, Algorithm 1: clients
minimise -log(M - F), the server averages as FedAvg does.

Deviations from the paper: `ridge` is added to the objective and is no part of F; F is the mean of a mini-batch, as in
the paper's own experiments. Deviations from published code: below epsilon the logarithm continues along its tangent,
so that the slope is 1 / epsilon there and nowhere jumps down.
"""

from __future__ import annotations

from dqnfed_flwr.methods.fedavg import FedAvg
from dqnfed_flwr.schema.group import Group, own
from dqnfed_flwr.schema.plan import Profile
from dqnfed_flwr.schema.work import WorkProfile


class PropFairSettings(Group):
    """PropFair."""

    bound: float = own(2.0, "M, the utility of a client is M - F", gt=0)


METHODS = (
    Profile(
        name="propfair",
        title="PropFair",
        settings=PropFairSettings,
        build=FedAvg,
        works=(WorkProfile("propfair", "dqnfed_flwr.methods.propfair.client:PropFairWork", passes=True),),
    ),
)
