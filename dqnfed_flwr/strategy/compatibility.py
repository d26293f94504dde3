"""Before the first round: what a node says of itself, and whether its data and model fit the others'."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dqnfed_flwr import wire
from dqnfed_flwr.errors import DataError, WireError, shortened
from dqnfed_flwr.strategy.collect import REPEATED
from dqnfed_flwr.version import UNKNOWN, package_version

LARGEST_NUMBER, LARGEST_DIM, LONGEST_WORD, MOST_CLASSES = 2**31 - 1, 2**53, 100, 10**6
"""The largest partition number and D, the longest word and the most classes that are believed."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node that answered the query."""

    node_id: int  # Flower's; changes when a node without a key comes back
    client: int  # its partition number, by which everything here is ordered
    num_examples: int
    num_classes: int
    input_shape: tuple[int, ...]  # of a sample as the model sees it
    input_kind: str = ""  # `images`, `features` or `tokens`; empty where the node does not say
    dim: int = 0  # D of its model; 0 where it does not say
    version: str = ""  # of its app; empty or `UNKNOWN` where it cannot tell
    feature_scale: float = 0.0  # the power of ten that |x| reaches; 0 where it does not say, or x are whole numbers
    frozen: str = ""  # `params.frozen_fingerprint` of its model; empty where it does not say
    name: str = ""  # what its operator calls it; empty where it has none
    test_examples: int = -1  # samples that it tests on; -1 where it does not say
    fault: str = ""  # why its own data cannot be used, in one line; then nothing is known of their form

    @property
    def words(self) -> str:
        """What the log calls it."""
        return f"node {self.name} ({self.node_id})" if self.name else f"node {self.node_id}"


def read_member(node: int, properties: Mapping[str, object]) -> Member:
    """Read what a node answered to the query; nothing in its `properties` is trusted.

    What is missing or out of bounds raises WireError with reason `bad-properties`. A node whose own data cannot be used
    says so in place of their form.
    """
    fault = " ".join(shortened(str(properties.get("fault", ""))).split())

    def whole(key: str, least: int, most: int) -> int:
        value = int(str(properties[key]))
        if not least <= value <= most:
            raise ValueError(f"{key} is {value}; need a whole number from {least} to {most}")
        return value

    try:
        client = whole("partition", 0, LARGEST_NUMBER)
        name, version = _word(properties, "name"), str(properties.get("version", ""))[:LONGEST_WORD]
        if fault:
            return Member(node, client, 0, 0, (), version=version, name=name, fault=fault)
        return Member(
            node_id=node,
            client=client,
            num_examples=whole("num-examples", 1, wire.MAX_EXAMPLES),
            num_classes=whole("num-classes", 1, MOST_CLASSES),
            input_shape=tuple(int(side) for side in str(properties["input-shape"])[:LONGEST_WORD].split(",")),
            input_kind=str(properties.get("input-kind", ""))[:LONGEST_WORD],
            dim=whole("dim", 0, LARGEST_DIM) if "dim" in properties else 0,
            version=version,
            feature_scale=_finite(properties.get("feature-scale")),
            frozen=str(properties.get("frozen", ""))[:LONGEST_WORD],
            name=name,
            test_examples=whole("test-examples", 0, wire.MAX_EXAMPLES) if "test-examples" in properties else -1,
        )
    except (KeyError, ValueError) as error:
        raise WireError("bad-properties", f"{error} in {sorted(properties)[:12]}") from None


def _word(properties: Mapping[str, object], key: str) -> str:
    return "".join(sign for sign in str(properties.get(key, "")) if sign.isprintable())[:LONGEST_WORD]


def _finite(value: object) -> float:
    """A number that only advice depends on; 0 for what is none, which excludes no node."""
    return value if isinstance(value, float) and math.isfinite(value) else 0.0


OTHER_FORM, OTHER_FROZEN, OTHER_VERSION = "other-form", "other-frozen", "other-version"
UNFIT_DATA = "unfit-data"
REASONS = (OTHER_FORM, OTHER_FROZEN, OTHER_VERSION, UNFIT_DATA, REPEATED)
"""Of nodes that are there and not asked."""
MOST_NAMED, SHOWN = 8, 12
LARGE_FEATURE = 100.0
"""Size of features, in units of standardised ones, beyond which a step that fits some weights is wild for others."""


@dataclass(frozen=True, slots=True)
class Form:
    """What all members have in common."""

    input_shape: tuple[int, ...]  # of a sample as the model sees it
    input_kind: str  # `images`, `features` or `tokens`; empty where no node said
    num_classes: int  # of the model; a member's data may lack some
    dim: int = 0  # D of the model for so many classes; 0 where no node said
    frozen: str = ""  # fingerprint of the part of that model that stays on the nodes; empty where no node said


def common_form(members: Collection[Member], num_classes: int) -> Form:
    """The form that most of the `members`, at least one, have.

    `num_classes` is the operator's word; 0 takes the count that more than half of the members with that form name.
    Without a form that more members have than any other, or without such a count, it raises DataError.
    """
    samples = Counter((member.input_shape, member.input_kind) for member in members).most_common()
    if len(samples) > 1 and samples[0][1] == samples[1][1]:
        raise DataError(
            f"clients disagree on the shape of a sample: {sorted(samples)}, each with its number of clients; one model "
            "cannot serve both. Give the nodes data of one form, or start more nodes with the right one"
        )
    shape, kind = samples[0][0]
    alike = [member for member in members if (member.input_shape, member.input_kind) == (shape, kind)]
    classes = num_classes or _majority([member.num_classes for member in alike])
    alike = [member for member in alike if member.num_classes == classes]
    dims = Counter(member.dim for member in alike if member.dim)
    dim = max(dims, key=lambda dim: (dims[dim], dim), default=0)
    return Form(shape, kind, classes, dim, _common_frozen([m.frozen for m in alike if m.dim == dim and m.frozen]))


def incompatibility(member: Member, form: Form | None) -> tuple[str, str] | None:
    """Why a node cannot take part, as a reason and a text for the operator; None if it can.

    What the node does not say is not held against it. `form` is None as long as that of the federation is not known.
    """
    mine = package_version()
    if member.version not in ("", UNKNOWN) and mine != UNKNOWN and _series(member.version) != _series(mine):
        return OTHER_VERSION, f"the node runs dqnfed-flwr {member.version}, the server {mine}; install {mine} there"
    if member.fault:
        return UNFIT_DATA, member.fault
    if form is None:
        return None
    if (member.input_shape, member.input_kind) != (form.input_shape, form.input_kind):
        return OTHER_FORM, (
            f"its samples are {_sample(member)}, those of the federation {_sample(form)}; give the node data of that "
            "form (node-config data=...)"
        )
    if member.num_classes > form.num_classes:
        return OTHER_FORM, (
            f"its data have {member.num_classes} classes, the federation's model {form.num_classes}; correct its "
            f"labels, or set num-classes to {member.num_classes}"
        )
    if member.num_classes == form.num_classes and form.dim and member.dim not in (0, form.dim):
        return OTHER_FORM, (
            f"its model has {member.dim} values, that of the federation {form.dim}; install the same model on all nodes"
        )
    if member.num_classes == form.num_classes and form.frozen and member.frozen not in ("", form.frozen):
        return OTHER_FROZEN, (
            f"the frozen part of its model has fingerprint {member.frozen[:SHOWN]}, that of the federation "
            f"{form.frozen[:SHOWN]}; install the same pretrained weights on all nodes"
        )
    return None


def check_tested(members: Collection[Member]) -> None:
    """Raise DataError where no member, of at least one, has a sample to test on: the run would have no figure."""
    if members and all(member.test_examples == 0 for member in members):
        raise DataError(
            f"data: none of {len(members)} clients has a test sample, so that there would be no figure; give at least "
            "one client a test part, or two samples or more where its own are split"
        )


def scale_warning(members: Collection[Member]) -> str:
    """A word about features that models hardly learn from as they are; empty where there are none."""
    wild = [member for member in members if member.feature_scale >= LARGE_FEATURE]
    if not wild:
        return ""
    largest = max(member.feature_scale for member in wild)
    names = ", ".join(str(member.client) for member in wild[:MOST_NAMED]) + (", ..." if len(wild) > MOST_NAMED else "")
    return (
        f"features of {largest:.6g} or more on {len(wild)} of {len(members)} clients ({names}): scale them (mean 0, "
        "deviation 1), alike on all, or set data-scale standardise"
    )


def _majority(counts: Collection[int]) -> int:
    """The number of classes that more than half name: it is the size of everybody's model, and no matter of a few."""
    count, named = Counter(counts).most_common(1)[0]
    if 2 * named <= len(counts):
        raise DataError(
            f"clients disagree on the number of classes: {dict(sorted(Counter(counts).items()))}, each with its number "
            "of clients, and none is named by more than half. Set num-classes to that of the model"
        )
    return count


def _common_frozen(named: Collection[str]) -> str:
    """The fingerprint that more members name than any other; empty where none names one."""
    found = Counter(named).most_common(2)
    if len(found) > 1 and found[0][1] == found[1][1]:
        counts = {name[:SHOWN]: count for name, count in sorted(Counter(named).items())}
        raise DataError(
            f"clients disagree on the frozen part of the model: fingerprints {counts}, each with its number of "
            "clients; install the same pretrained weights on all nodes"
        )
    return found[0][0] if found else ""


def _series(version: str) -> list[str]:
    """What versions that work together have in common: the first two of three numbers."""
    return version.split(".")[:2]


def _sample(of: Member | Form) -> str:
    return f"{of.input_kind or 'samples'} of shape {of.input_shape}"
