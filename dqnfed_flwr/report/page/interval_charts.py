"""Charts of the intervals behind the claims."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dqnfed_flwr.compare.claims import Claim, Finding
from dqnfed_flwr.report.page.svg import Frame, Scale, dot, line


def interval_chart(finding: Finding, reach: float) -> str:
    """An interval against 0, drawn so that to the right is always good for the reference."""
    frame = Frame(120, 18, left=4, right=4, top=0, bottom=0)
    scale = Scale(-reach, reach, frame.left, frame.width - frame.right)
    parts = [line((scale(0), 1), (scale(0), 17), "zero")]
    if finding.interval:
        low, at, high = (scale(scale.inside(_towards(finding) * value)) for value in finding.interval)
        if not math.isnan(finding.interval.low):
            parts.append(line((min(low, high), 9), (max(low, high), 9), "span"))
        parts.append(dot(at, 9, 3.6, "dot"))
    return frame.draw(parts, finding.text)


def _towards(finding: Finding) -> float:
    """From a difference to the claim's unit, positive where it speaks for the reference."""
    return finding.claim.sign * finding.claim.scale


def reach_of(claim: Claim, found: Sequence[Finding]) -> float:
    """The largest bound of a claim's intervals, but at most three times their median."""
    bounds = [
        max(abs(claim.scale * value) for value in finding.interval if not math.isnan(value))
        for finding in found
        if finding.interval
    ]
    known = [bound for bound in bounds if bound > 0]
    return min(max(known), 3 * float(np.median(known))) if known else 1.0
