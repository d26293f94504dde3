"""What a user may have meant by a name that is none: of a key, by its last part, and of a method, by other names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

OTHER_KEYS = {
    "algorithm": "method",
    "dataset": "data",
    "fraction-fit": "participation",
    "fraction-train": "participation",
    "learning-rate": "local.lr",
    "mu": "local.proximal",
    "num-clients": "clients",
    "num-rounds": "rounds",
    "num-server-rounds": "rounds",
    "num-supernodes": "clients",
    "proximal-mu": "local.proximal",
    "strategy": "method",
    "weight-decay": "ridge",
}
"""Names that other libraries have for our keys."""
OTHER_METHODS = {
    "agnosticfl": "afl",
    "fedopt": "fedadam",
    "fedprox": "fedavg with local.proximal",
    "fedavgmomentum": "fedavgm",
    "lbfgs": "server-lbfgs",
    "localonly": "local",
    "multikrum": "krum with krum.keep",
    "qfedavg": "q-ffl",
    "qfedsgd": "q-ffl with local.work=gradient",
    "tiltederm": "term",
}
"""Names of methods, in lower case without signs, with what to write for them here."""
FIRST = "local"
"""The group whose keys come first where several groups have one: it is what every client does."""

CLOSE = 0.75
"""How much a name must be like one of many, by difflib's ratio."""


def did_you_mean(names: Sequence[str]) -> str:
    """The question; empty if there is nothing to ask."""
    return f"did you mean {', '.join(names[:-1])}{' or ' if names[:-1] else ''}{names[-1]}?" if names else ""


def keys_like(key: str, known: Sequence[str]) -> list[str]:
    """Those of the dotted keys `known` that somebody may have meant by `key`, the most likely first.

    A near key of the same group comes before one of any group with the same last part, and that before a near last
    part. Underscores and capitals are read as they are meant.
    """
    wanted = key.lower().replace("_", "-")
    group, _, last = wanted.rpartition(".")
    if wanted in known:
        return [wanted]
    if last in OTHER_KEYS and OTHER_KEYS[last] in known:
        return [OTHER_KEYS[last]]
    groups = {name: name.rpartition(".")[0] for name in known}
    lasts = {name: name.rpartition(".")[2] for name in known}
    same = [name for name in known if lasts[name] == last]
    siblings = {lasts[name]: name for name in known if groups[name] == group}
    if (group or not same) and (near := get_close_matches(last, siblings, n=1)):
        return [siblings[near[0]]]
    if not same:
        nearest = get_close_matches(last, set(lasts.values()), n=1, cutoff=CLOSE)
        same = [name for name in known if [lasts[name]] == nearest]
    return sorted(same, key=lambda name: groups[name] != FIRST)


def method_like(name: str, titles: Iterable[tuple[str, str]]) -> list[str]:
    """What to write for a method that is called `name` elsewhere; `titles` are names of methods with their titles.

    Capitals, hyphens and other signs make no difference.
    """
    wanted, methods = _plain(name), list(titles)
    if exact := [own for own, title in methods if wanted in (_plain(own), _plain(title))]:
        return exact
    if wanted in OTHER_METHODS:
        return [OTHER_METHODS[wanted]]
    plain = {_plain(text): own for own, title in methods for text in (title, own)} | OTHER_METHODS
    return [plain[near] for near in get_close_matches(wanted, plain, n=1, cutoff=CLOSE)]


def _plain(text: str) -> str:
    return "".join(sign for sign in text.lower() if sign.isalnum())
