"""Commands for either transport of Flower."""

from __future__ import annotations

import pytest

from dqnfed_flwr.deploy.commands import superlink_arguments
from dqnfed_flwr.deploy.plan import Federation


@pytest.mark.parametrize(("flwr", "over_http"), [("1.39.0", False), ("1.40.0", True), ("1.42.0", True), ("2.0", True)])
def test_a_superlink_has_a_fleet_port_as_long_as_flower_speaks_grpc(flwr: str, over_http: bool) -> None:
    federation = Federation("fl.example.org", flwr=flwr)
    assert ("--fleet-api-address" in superlink_arguments(federation)) is not over_http
    assert ("gate" in federation.transport.endpoints) is over_http
    assert "127.0.0.1" in superlink_arguments(federation)
