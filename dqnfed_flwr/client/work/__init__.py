"""Local work: from the model received to the row that a client sends. The work of one method lies in its folder."""

from importlib import import_module

from dqnfed_flwr.client.work._base import Bench, LocalWork, Occasion, Product

__all__ = ["Bench", "LocalWork", "Occasion", "Product", "make_work"]


def make_work(bench: Bench) -> LocalWork:
    """A fresh object of the work that the settings name."""
    module, _, name = bench.settings.work.source.partition(":")
    work: LocalWork = getattr(import_module(module), name)(bench)
    return work
