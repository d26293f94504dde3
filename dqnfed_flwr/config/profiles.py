"""What every method asks of the clients and of the step: the one place where methods differ outside their own files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dqnfed_flwr.errors import ConfigError

Work = Literal["gradient", "sgd", "lbfgs", "newton", "fednl", "fednew", "ditto", "propfair", "fedcorr"]
Rule = Literal["newton", "fixed", "clipped", "probed", "search"]
PASSES: tuple[Work, ...] = ("sgd", "ditto", "propfair", "fedcorr")
"""Local work that is passes of SGD, and so changes the buffers of a model."""
TORCHJD = "torchjd:"
FREE: tuple[Rule, ...] = ("newton", "fixed", "clipped", "probed")
BLIND: tuple[Rule, ...] = ("newton", "fixed", "clipped")


@dataclass(frozen=True, slots=True)
class Profile:
    """A method as seen from outside.

    Attributes
    ----------
    title : str
        Its name in tables.
    works : tuple[Work, ...]
        Local work that it can be fed with, the paper's first. A client does `newton`, `fednl`, `fednew`, `ditto`,
        `propfair` and `fedcorr` for these methods alone.
    rules : tuple[Rule, ...]
        Step rules that make sense, the paper's first.
    everybody : bool
        Whether it needs every client in every round.
    """

    title: str
    works: tuple[Work, ...] = ("sgd", "gradient", "lbfgs")
    rules: tuple[Rule, ...] = FREE
    everybody: bool = False


GRADIENTS: tuple[Work, ...] = ("gradient", "lbfgs")
"""Local work whose row becomes a step by the local rate."""
GRADIENT_ROWS: tuple[Work, ...] = (*GRADIENTS, "fednl")
"""Local work whose row is a gradient; that of the others is the way from the model received to one of their own."""
GRADIENTS_FIRST: tuple[Work, ...] = ("gradient", "sgd", "lbfgs")

PROFILES: dict[str, Profile] = {
    "local-newton": Profile("LocalNewton", ("newton",), BLIND),
    "fednew": Profile("FedNew", ("fednew",), BLIND),
    "fednl": Profile("FedNL", ("fednl",), BLIND),
    "dqn-fed": Profile("DQN-Fed", GRADIENTS, ("probed", "newton", "fixed", "clipped")),
    "fedavg": Profile("FedAvg", ("sgd",), BLIND),
    "ditto": Profile("Ditto", ("ditto",), BLIND),
    "fedcorr": Profile("FedCorr", ("fedcorr",), ("newton", "fixed", "clipped", "probed", "search")),
    "fedsgd": Profile("FedSGD", GRADIENTS),
    "fedfv": Profile("FedFV"),
    "fedlf": Profile("FedLF"),
    "fedmdfg": Profile("FedMDFG", GRADIENTS_FIRST, ("search", "probed", "newton", "fixed", "clipped")),
    "mgda": Profile("MGDA", GRADIENTS_FIRST),
    "fedmgda+": Profile("FedMGDA+"),
    "fedheal": Profile("FedHEAL"),
    "krum": Profile("Krum"),
    "trimmed-mean": Profile("Trimmed mean"),
    "median": Profile("Median"),
    "q-ffl": Profile("q-FFL"),
    "term": Profile("TERM"),
    "gifair": Profile("GiFair"),
    "vred": Profile("VRed"),
    "semi-vred": Profile("Semi-VRed"),
    "propfair": Profile("PropFair", ("propfair",), BLIND),
    "afl": Profile("AFL", GRADIENTS_FIRST),
    "adafed": Profile("AdaFed"),
    "fedavgm": Profile("FedAvgM"),
    "fedadam": Profile("FedAdam"),
    "momentum": Profile("momentum (no guarantee)", GRADIENTS),
    "server-lbfgs": Profile("server L-BFGS (no guarantee)", GRADIENTS),
}


def profile_of(method: str) -> Profile:
    """The profile of a method's name.

    Raises
    ------
    ConfigError
        If there is no such method.
    """
    if method.startswith(TORCHJD) and len(method) > len(TORCHJD):
        return Profile(f"{method.removeprefix(TORCHJD)} (torchjd)", GRADIENTS_FIRST)
    if method not in PROFILES:
        raise ConfigError(f"found {method!r}; allowed: {', '.join(sorted(PROFILES))}, {TORCHJD}<aggregator>")
    return PROFILES[method]
