"""Settings of a run: `settings` has the keys, `methods` those of each method. Importing it imports no torch."""

from dqnfed_flwr.config._group import Scalar
from dqnfed_flwr.config.effects import one_full_step, without_effect
from dqnfed_flwr.config.groups import (
    CurvatureSettings,
    LocalSettings,
    NoiseSettings,
    PartitionName,
    SplitSettings,
    StepRuleName,
    StepSettings,
)
from dqnfed_flwr.config.guarantee import GuaranteeSettings
from dqnfed_flwr.config.mapping import flatten, nest
from dqnfed_flwr.config.methods import DqnFedSettings, FedMdfgSettings, ReferenceName
from dqnfed_flwr.config.profiles import PROFILES, TORCHJD, Profile, profile_of
from dqnfed_flwr.config.retired import is_retired, retired_in, said_of, without_retired
from dqnfed_flwr.config.scenario import AttackSettings, StartSettings, check_for_nodes
from dqnfed_flwr.config.settings import Settings, describe

__all__ = [
    "PROFILES",
    "TORCHJD",
    "AttackSettings",
    "CurvatureSettings",
    "DqnFedSettings",
    "FedMdfgSettings",
    "GuaranteeSettings",
    "LocalSettings",
    "NoiseSettings",
    "PartitionName",
    "Profile",
    "ReferenceName",
    "Scalar",
    "Settings",
    "SplitSettings",
    "StartSettings",
    "StepRuleName",
    "StepSettings",
    "check_for_nodes",
    "describe",
    "flatten",
    "is_retired",
    "nest",
    "one_full_step",
    "profile_of",
    "retired_in",
    "said_of",
    "without_effect",
    "without_retired",
]
