"""Votes on a candidate: which participants contradict themselves, and so hold up the others."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from dqnfed_flwr.types import Probe

VETO = "veto"
"""Reason of a participant that has no vote on a step."""
MATERIAL = 1e-5
"""Relative rise of a loss that is no rounding of float32 means."""


def stubborn(
    probes: Mapping[int, Probe],
    references: Mapping[int, float],
    slopes: Mapping[int, float],
    last_rung: float,
    promised: Collection[int] = (),
) -> set[int]:
    """Participants that refuse whatever is offered, and whose loss rose by more than rounding.

    That is: no factor of the ladder suits them, or only the last; or they named this very factor as one that does.

    Where g_k . step > 0, a true gradient has rungs that hold, low enough, and each exchange lowers the ladder by its
    whole length; and a rung that a client named holds when it is the next candidate, the model being the same up to
    rounding. Who refuses ladder after ladder has sent a gradient and losses that contradict each other. A participant
    whose own gradient says that the step harms it is right to refuse, and not counted.

    Parameters
    ----------
    probes : Mapping[int, Probe]
        By participant.
    references, slopes : Mapping[int, float]
        f_k at the model the step starts from, as reported, and g_k . step.
    last_rung : float
        The smallest factor that was asked for.
    promised : Collection[int]
        Who said one exchange ago that its loss falls enough at the factor of now.
    """
    return {
        client
        for client, probe in probes.items()
        if slopes[client] > 0
        and not probe.holds
        and (client in promised or probe.back_factor is None or probe.back_factor <= last_rung)
        and _rose(probe.loss, references[client])
    }


def _rose(loss: float, reference: float) -> bool:
    return not math.isfinite(loss) or loss - reference > MATERIAL * abs(reference)
