"""The shipped manifests and what they plan, each made once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from dqnfed_flwr.compare.plan import Plan
from dqnfed_flwr.reproduce.manifests import load_manifest, manifest_names
from dqnfed_flwr.reproduce.parts import ReproduceOptions, plan_part
from dqnfed_flwr.reproduce.schema import Part

shipped = cache(load_manifest)
PARTS = [(name, key) for name in manifest_names() for key in shipped(name).parts]


def part_of(name: str, key: str) -> Part:
    return shipped(name).parts[key]


def plan_of(name: str, key: str, wanted: ReproduceOptions) -> Plan:
    return plan_part(part_of(name, key), shipped(name).seeds, wanted, Path("nowhere"))
