"""Votes on a candidate: which participants contradict themselves, and so hold up the others."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from dqnfed_flwr.types import Probe

VETO = "veto"
"""Reason of a participant that has no vote on a step."""
MATERIAL = 1e-5
"""Relative rise of a loss that is no rounding of float32 means."""
ROUNDING = 1e-7
"""The same for losses that should be nearly equal."""


def stubborn(
    probes: Mapping[int, Probe],
    references: Mapping[int, float],
    slopes: Mapping[int, float],
    last_rung: float,
) -> set[int]:
    """Participants that no factor of the ladder suits, or only the last, and whose loss rose by more than rounding.

    Where g_k . step > 0, a true gradient has rungs that hold, low enough, and each exchange lowers the ladder by its
    whole length. How low, only the curvature of the client's loss tells: who refuses ladder after ladder may be an
    honest client with a sharply curved loss, and contradicts itself only where the least factor does not suit it
    either, or where its loss does `fall_behind`. A participant whose own gradient says that the step harms it is right
    to refuse, and not counted.

    Parameters
    ----------
    probes : Mapping[int, Probe]
        By participant.
    references, slopes : Mapping[int, float]
        f_k at the model the step starts from, as reported, and g_k . step.
    last_rung : float
        The smallest factor that was asked for.
    """
    return {
        client
        for client in _refusing(probes, references, slopes)
        if (back := probes[client].back_factor) is None or back <= last_rung
    }


def promise_breakers(
    probes: Mapping[int, Probe],
    references: Mapping[int, float],
    slopes: Mapping[int, float],
    promised: Collection[int],
) -> set[int]:
    """Those of `promised` whose loss rose by more than rounding at the factor that they named one exchange ago.

    A rung that a client named holds when it is the next candidate, the model being the same up to rounding.
    """
    return _refusing(probes, references, slopes).intersection(promised)


def fall_behind(probes: Mapping[int, Probe], references: Mapping[int, float]) -> set[int]:
    """Participants whose loss falls the other way along the step, or that do not say so where they were to.

    A loss that falls along the step and is curved upwards lies above its tangent, and so is larger behind. Where it is
    smaller there and larger ahead, its gradient points the other way than the one that was sent.
    """
    return {
        client
        for client, probe in probes.items()
        if probe.behind_loss is None or references[client] - probe.behind_loss > ROUNDING * abs(references[client])
    }


def _refusing(probes: Mapping[int, Probe], references: Mapping[int, float], slopes: Mapping[int, float]) -> set[int]:
    """Whose gradient has its loss fall along the step, and whose loss rose by more than rounding."""
    return {
        client
        for client, probe in probes.items()
        if slopes[client] > 0 and not probe.holds and _rose(probe.loss, references[client])
    }


def _rose(loss: float, reference: float) -> bool:
    return not math.isfinite(loss) or loss - reference > MATERIAL * abs(reference)
