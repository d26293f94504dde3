"""Settings of a run, checked as a whole; `schema` says what a setting is. Importing this imports no torch."""

from dqnfed_flwr.config.combinations import check_for_nodes
from dqnfed_flwr.config.loading import PRESETS, preset_of
from dqnfed_flwr.config.plan import protection_of, resolve
from dqnfed_flwr.config.settings import (
    GROUP_OF_METHOD,
    KNOWN,
    Settings,
    describe,
    flatten,
    nest,
    toml_defaults,
    unknown_key,
    without_effect,
)
from dqnfed_flwr.schema.group import Scalar
from dqnfed_flwr.schema.groups import (
    AttackSettings,
    CurvatureSettings,
    GuaranteeSettings,
    LocalSettings,
    NoiseSettings,
    PartitionName,
    SplitSettings,
    StepSettings,
)

__all__ = [
    "GROUP_OF_METHOD",
    "KNOWN",
    "PRESETS",
    "AttackSettings",
    "CurvatureSettings",
    "GuaranteeSettings",
    "LocalSettings",
    "NoiseSettings",
    "PartitionName",
    "Scalar",
    "Settings",
    "SplitSettings",
    "StepSettings",
    "check_for_nodes",
    "describe",
    "flatten",
    "nest",
    "preset_of",
    "protection_of",
    "resolve",
    "toml_defaults",
    "unknown_key",
    "without_effect",
]
