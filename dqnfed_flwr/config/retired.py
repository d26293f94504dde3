"""Keys that earlier versions had: what takes their place, and how old records and files are read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dqnfed_flwr.errors import ConfigError

RETIRED = {
    "admission": "replies are no longer compared by size; say with guarantee.tolerate how many clients may lie",
    "step.acceptance": "nobody is overruled without being named; say with guarantee.tolerate how many may be",
}
"""Keys and groups, with what takes their place."""
RENAMED = {
    "dqn-fed.reference": "dqn-fed.anchor names the method whose step is changed",
    "dqn-fed.lr": "local.lr",
    "dqn-fed.beta": "momentum.beta",
    "dqn-fed.memory": "server-lbfgs.memory",
}
"""Keys that are read as others."""
RATE = "dqn-fed.lr"
ANCHORS = {"gradient": "fedsgd", "lbfgs": "server-lbfgs", "update": "fedavg"}
"""Words of `dqn-fed.reference` for methods of another name."""
STRICT = ("guarantee.entitlement", "0")
"""What a setting was before there was one."""


def is_retired(key: str) -> bool:
    """Whether a dotted key is an old one, or lies in a group that is."""
    return key in RENAMED or bool(retired_in([key]))


def retired_in(keys: Collection[str]) -> list[str]:
    """Those keys and groups of `RETIRED` that some of the dotted `keys` are of."""
    return [old for old in RETIRED if any(key == old or key.startswith(f"{old}.") for key in keys)]


def said_of(key: str) -> str:
    """The message for a user who gives a retired key."""
    if key in RENAMED:
        return f"{key}: an old name; {RENAMED[key]}"
    (old, *_) = retired_in([key])
    return f"{old}: no longer a setting; {RETIRED[old]}"


def without_retired(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a record by dotted keys, under new names, without those that mean nothing any more.

    A record that has some was made when no loss was allowed to rise, which is the entitlement 0. It holds all keys:
    of two rates, that of the anchor is the one that its run depended on.
    """
    kept = {key: value for key, value in flat.items() if not retired_in([key])}
    if len(kept) < len(flat):
        kept = {STRICT[0]: STRICT[1], **kept}
    if RATE in kept and _anchor_reads_rate(kept):
        kept.pop(RENAMED[RATE], None)
    return with_new_names(kept)


def with_new_names(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted keys with the old names of `RENAMED` as new ones.

    What belonged to an anchor counts only in a run that ends with DQN-Fed: a record holds all keys, and those of other
    methods are not to be changed. FedAvg's row was sent as it is. FedCorr keeps `local.lr` for its first stages.

    Raises
    ------
    ConfigError
        If an anchor is named under both names, or a rate with two values.
    """
    old = {key: flat[key] for key in RENAMED if key in flat}
    new = {key: value for key, value in flat.items() if key not in old}
    reference = str(old.get("dqn-fed.reference", "auto"))
    if reference == "none":
        new["dqn-fed.form"] = "one-sided" if new.get("dqn-fed.form", "anchored") == "anchored" else new["dqn-fed.form"]
    elif reference != "auto":
        if reference == "update":
            new.setdefault("dqn-fed.anchor-bits", 32)
        named = new.setdefault("dqn-fed.anchor", ANCHORS.get(reference, reference))
        if named != ANCHORS.get(reference, reference):
            raise ConfigError(
                f"dqn-fed.reference: found {reference!r} beside dqn-fed.anchor {named!r}; give the second"
            )
    if "dqn-fed" in (new.get("method", "dqn-fed"), new.get("fedcorr.last")):
        new |= {RENAMED[key]: old[key] for key in ("dqn-fed.beta", "dqn-fed.memory") if key in old}
    if RATE in old and _anchor_reads_rate(flat):
        rate = new.setdefault(RENAMED[RATE], old[RATE])
        if rate != old[RATE]:
            raise ConfigError(f"{RATE}: found {old[RATE]!r} beside {RENAMED[RATE]} {rate!r}; give the second")
    return new


def _anchor_reads_rate(flat: Mapping[str, Any]) -> bool:
    """Whether settings of an earlier version have an anchor of gradients, whose rate was `dqn-fed.lr`."""
    anchored = flat.get("dqn-fed.form", "anchored") == "anchored" and flat.get("method", "dqn-fed") == "dqn-fed"
    return anchored and flat.get("dqn-fed.reference", "auto") not in ("update", "none")
