"""Clients of this process, built once and used again while they are among the last few asked for."""

from __future__ import annotations

from functools import lru_cache

from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import load_client

MAX_CLIENTS = 128


@lru_cache(maxsize=MAX_CLIENTS)
def client_for(settings: Settings, partition: int, data_path: str | None = None) -> DQNFedClient:
    """The client of a partition with its data; its memory lives as long as it stays among the last `MAX_CLIENTS`.

    Raises
    ------
    DataError
        If data or partition cannot be used.
    """
    return DQNFedClient(settings, partition, load_client(settings, partition, data_path))
