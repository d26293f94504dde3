"""Methods by name."""

from __future__ import annotations

from collections.abc import Callable

from dqnfed_flwr.config import Settings
from dqnfed_flwr.config.profiles import TORCHJD
from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.methods.adafed import AdaFed
from dqnfed_flwr.methods.afl import Afl
from dqnfed_flwr.methods.anchor_alone import AnchorAlone
from dqnfed_flwr.methods.anchors import LbfgsAnchor, MomentumAnchor
from dqnfed_flwr.methods.coordinate_wise import Median, TrimmedMean
from dqnfed_flwr.methods.ditto import Ditto
from dqnfed_flwr.methods.dqn_fed import dqn_fed
from dqnfed_flwr.methods.fedadam import FedAdam
from dqnfed_flwr.methods.fedavg import FedAvg, FedSgd
from dqnfed_flwr.methods.fedavgm import FedAvgM
from dqnfed_flwr.methods.fedcorr import FedCorr
from dqnfed_flwr.methods.fedfv import FedFV
from dqnfed_flwr.methods.fedheal import FedHeal
from dqnfed_flwr.methods.fedlf import FedLf
from dqnfed_flwr.methods.fedmdfg import FedMdfg
from dqnfed_flwr.methods.fedmgda import FedMgdaPlus
from dqnfed_flwr.methods.fednew import FedNew
from dqnfed_flwr.methods.fednl import fednl
from dqnfed_flwr.methods.gifair import GiFair
from dqnfed_flwr.methods.krum import Krum
from dqnfed_flwr.methods.local_newton import LocalNewton
from dqnfed_flwr.methods.mgda import Mgda
from dqnfed_flwr.methods.q_ffl import QFfl
from dqnfed_flwr.methods.term import Term
from dqnfed_flwr.methods.torchjd import torchjd_method
from dqnfed_flwr.methods.vred import VRed

METHODS: dict[str, Callable[[Settings], Method]] = {
    "local-newton": lambda settings: LocalNewton(settings.local_newton),
    "fednew": lambda settings: FedNew(settings.fednew),
    "fednl": fednl,
    "dqn-fed": dqn_fed,
    "fedavg": lambda settings: FedAvg(),
    "ditto": lambda settings: Ditto(),
    "fedcorr": lambda settings: FedCorr(settings, make_method(settings.stage_settings)),
    "fedsgd": lambda settings: FedSgd(settings.unit),
    "fedfv": FedFV,
    "fedmdfg": FedMdfg,
    "fedlf": FedLf,
    "mgda": lambda settings: Mgda(settings.unit),
    "fedmgda+": lambda settings: FedMgdaPlus(settings.fedmgda, settings.unit),
    "fedheal": lambda settings: FedHeal(settings.fedheal, settings.unit),
    "krum": lambda settings: Krum(settings.krum, settings.unit),
    "trimmed-mean": lambda settings: TrimmedMean(settings.trimmed_mean, settings.unit),
    "median": lambda settings: Median(settings.unit),
    "q-ffl": lambda settings: QFfl(settings.q_ffl, settings.local, displaced=settings.local_work == "sgd"),
    "term": lambda settings: Term(settings.term, settings.unit),
    "gifair": lambda settings: GiFair(settings.gifair, settings.unit),
    "vred": lambda settings: VRed(settings.vred, settings.unit),
    "semi-vred": lambda settings: VRed(settings.semi_vred, settings.unit),
    "propfair": lambda settings: FedAvg(),
    "afl": lambda settings: Afl(settings.afl, settings.unit),
    "adafed": lambda settings: AdaFed(settings.adafed, settings.unit),
    "fedavgm": lambda settings: FedAvgM(settings.fedavgm, settings.unit),
    "fedadam": lambda settings: FedAdam(settings.fedadam, settings.unit),
    "momentum": lambda settings: AnchorAlone(MomentumAnchor(settings.unit, settings.momentum.beta), settings.unit),
    "server-lbfgs": lambda settings: AnchorAlone(
        LbfgsAnchor(settings.unit, settings.server_lbfgs.memory), settings.unit
    ),
}


def make_method(settings: Settings) -> Method:
    """A fresh method as `settings.method` names it."""
    if settings.method.startswith(TORCHJD):
        return torchjd_method(settings.method, settings.unit, settings.seed)
    return METHODS[settings.method](settings)
