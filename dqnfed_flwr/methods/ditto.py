"""Ditto: a global model as FedAvg makes it, and a personal model beside it on every client.

Li, Hu, Beirami and Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, Algorithm 1.

The server's half is FedAvg's. The personal models never leave the clients (`client/work/ditto.py`); fairness is read on
them, since each client reports the accuracy of its own.

Deviations from the paper: every client present counts by its share of samples, where Algorithm 1 draws them alike and
averages evenly. From published code, some of which trains no personal model at all: none beyond.
"""

from __future__ import annotations

from dqnfed_flwr.methods.fedavg import FedAvg


class Ditto(FedAvg):
    """step = sum p_k (theta - theta_k), as FedAvg."""
