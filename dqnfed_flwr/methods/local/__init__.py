"""Local only: every client trains its own model, from the common start, on its own data alone.

This is what a client has without the others. An audit compares it with what the federation gives (`audit`).

The server does nothing. Clients send what the protocol asks for and nobody needs: a row of zeros [D], the loss at the
start, and buffers as received. The server's model stays where it is, so ρ is 1 and says nothing.

There is no paper. Deviations from training alone as such: with sampling a client trains only in the rounds in which it
is asked, so that it has the budget that it has in the federation. Where it keeps a validation part, the model of the
lowest validation loss counts, with and without `early-stopping`. It measures that loss after each of its own rounds,
whatever `evaluate-every` says.
"""

from __future__ import annotations

from dqnfed_flwr.methods.fedavg import FedAvg
from dqnfed_flwr.schema.plan import Profile
from dqnfed_flwr.schema.work import WorkProfile


class LocalOnly(FedAvg):
    """The mean of rows of zeros: no step."""

    rests = True


METHODS = (
    Profile(
        name="local",
        title="Local only",
        build=LocalOnly,
        works=(WorkProfile("local", "dqnfed_flwr.methods.local.client:LocalOnlyWork", passes=True),),
        personal=True,
    ),
)
