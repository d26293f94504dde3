"""ClientApp: where Flower looks for it."""

from dqnfed_flwr.client.app import app

__all__ = ["app"]
