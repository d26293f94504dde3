"""Data sets, how they are dealt out to clients, and what a model gets to see of them.

Importing this package imports neither torch nor scikit-learn nor torchvision.
"""

from dqnfed_flwr.data.clients import ClientData, load_client
from dqnfed_flwr.data.dataset import DataSet, to_model_input

__all__ = ["ClientData", "DataSet", "load_client", "to_model_input"]
