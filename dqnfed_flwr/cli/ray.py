"""The options of a Ray cluster: runs of a comparison as its tasks, or the clients of one run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from dqnfed_flwr.cli.command import Engine
from dqnfed_flwr.errors import ConfigError

if TYPE_CHECKING:
    from dqnfed_flwr.compare.execute import CarryOut

ADDRESS = "RAY_ADDRESS"
"""Where Ray, and so Flower's engine, looks for a cluster."""

RayAddress = Annotated[
    str,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        show_default=False,
        help="Carry out the runs on a running Ray cluster: auto, HOST:PORT or ray://HOST:PORT.",
    ),
]
CpusPerRun = Annotated[
    float, typer.Option(metavar="N", show_default=False, help="Cores that a run takes of the cluster; 1 by default.")
]
GpusPerRun = Annotated[
    float,
    typer.Option(metavar="N", show_default=False, help="GPUs that a run takes, such as 0.25; 0 by default."),
]
RayOfClients = Annotated[
    str,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        show_default=False,
        help="With --engine flower: spread the clients over a running Ray cluster, auto or HOST:PORT.",
    ),
]


def carry_out_of(address: str, cpus: float, gpus: float) -> CarryOut | None:
    """What carries out runs on the cluster; None where none is asked for.

    Raises
    ------
    ConfigError
        If a run cannot ask for so much, or asks without a cluster.
    """
    from dqnfed_flwr.compare.on_ray import RayCluster, carry_out_on_ray, check_shares

    if not address:
        if (cpus, gpus) != (1.0, 0.0):
            raise ConfigError("--cpus-per-run and --gpus-per-run are shares of a cluster; give --ray ADDRESS too")
        return None
    check_shares(cpus, gpus)
    return partial(carry_out_on_ray, cluster=RayCluster(address, cpus, gpus))


def ray_words(address: str, cpus: float, gpus: float) -> dict[str, object]:
    """The options as they were given, for the command that goes on."""
    if not address:
        return {}
    shares = {"--cpus-per-run": cpus if cpus != 1.0 else None, "--gpus-per-run": gpus or None}
    return {"--ray": address, **shares}


@contextmanager
def clients_on(address: str, engine: Engine) -> Iterator[None]:
    """Have Flower's engine use the cluster meanwhile; nothing where none is asked for."""
    if not address:
        yield
        return
    if engine is not Engine.FLOWER:
        raise ConfigError("run --ray spreads the clients of Flower's engine; give --engine flower too")
    before = os.environ.get(ADDRESS)
    os.environ[ADDRESS] = address
    try:
        yield
    finally:
        if before is None:
            del os.environ[ADDRESS]
        else:
            os.environ[ADDRESS] = before
