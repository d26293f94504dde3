"""Local work: one kind a file, a registry."""

from dqnfed_flwr.client.work._base import Bench, LocalWork, Occasion, Product
from dqnfed_flwr.client.work.registry import WORKS, make_work

__all__ = ["WORKS", "Bench", "LocalWork", "Occasion", "Product", "make_work"]
