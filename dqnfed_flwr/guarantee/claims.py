"""Claims about one model that contradict each other: found in what a client says anyway, at no cost.

A client that is caught is named with both numbers. Its row and its vote do not count in that round: claims that exclude
each other are no evidence. Every check holds for an honest client whatever its loss looks like, up to the rounding of
its model's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from dqnfed_flwr.types import Probe

CONTRADICTION = "contradiction"
"""Reason under which a client that is caught is counted."""
TWO_LOSSES = "gave two losses for one model"
"""Begins the words about a client whose losses differ: one that is honest may give them, too."""
LATER = "not heard until round "
"""Begins the words about one that is not heard any more for what it said before."""
DRAWS = "a data reader or a layer that draws at random does that, too"
MATERIAL = 1e-5
"""Relative difference of two losses at the same point that is no rounding of float32 models."""
FLOOR = 1e-7
"""The same where both are nearly 0."""
LADDERS = 2
"""Exchanges of one step in which a client refuses whole ladders against its own gradient, before it is caught."""


def differ(one: float, other: float) -> bool:
    """Whether two losses that should be equal differ by more than rounding; infinite ones are equal."""
    if math.isinf(one) or math.isinf(other):
        return one != other
    return abs(one - other) > MATERIAL * max(abs(one), abs(other)) + FLOOR


def two_losses(said: str, one: float, other_said: str, other: float) -> str:
    """The words for two losses of the same model that differ; empty where they agree."""
    return f"{TWO_LOSSES}: {said} {one:.6g}, {other_said} {other:.6g}; {DRAWS}" if differ(one, other) else ""


def accusation(words: str) -> str:
    """What a client that was caught is said to have done: only a claim that no honest reader can make contradicts."""
    return words if words.startswith(TWO_LOSSES) else f"contradicts itself: {words}"


def broken_promise(probe: Probe, promised: tuple[float, float] | None, factor: float) -> str:
    """The words where a client refuses the factor that it named one exchange ago, with the loss it named there.

    `probe` is what it says of the candidate, `factor` that of the candidate; `promised` are the factor and loss that it
    named, None where it named none.
    """
    if promised is None or promised[0] != factor or probe.holds or not differ(probe.loss, promised[1]):
        return ""
    return two_losses(f"at factor {factor:.3g} it named loss", promised[1], "and refuses it with loss", probe.loss)


def refuses_against_its_gradient(probe: Probe, loss: float, slope: float, last_rung: float) -> bool:
    """Whether no factor of a ladder suits a client, or only the last, though its gradient has its loss fall, or stay.

    Where g_k . step > 0 a true gradient has rungs that hold, low enough. How low depends on the curvature of the loss,
    so this alone is no contradiction yet. `loss` is f_k at the model that the step starts from, as the client reported
    it, `slope` g_k . step, `last_rung` the smallest factor that was asked for.
    """
    rose = not math.isfinite(probe.loss) or (probe.loss > loss and differ(probe.loss, loss))
    return slope >= 0 and not probe.holds and rose and (probe.back_factor is None or probe.back_factor <= last_rung)


def falls_behind(probe: Probe, loss: float) -> bool:
    """Whether the loss falls as far the other way along the step, or the client does not say.

    A loss that falls along the step and is curved upwards lies above its tangent, and so is larger behind. Where it is
    smaller there and larger ahead, its gradient points the other way than the one that was sent.
    """
    return probe.behind_loss is None or loss - probe.behind_loss > MATERIAL / 100 * abs(loss)


def falls_behind_a_flat_start(probe: Probe, loss: float) -> bool:
    """The same for a client with g_k . step = 0, as of a row of zeros: its loss is not as flat as it says.

    A true one, curved upwards, rises on both sides, by so little that the difference must be more than rounding here.
    """
    return probe.behind_loss is not None and loss - probe.behind_loss > MATERIAL * abs(loss)


def infinite_everywhere(probes: Mapping[int, Probe]) -> list[int]:
    """Clients whose loss is finite at no rung of a ladder at which others' are, as `steps.search` asks for it."""
    unfit = [client for client, probe in probes.items() if not any(map(math.isfinite, probe.losses))]
    return unfit if len(unfit) < len(probes) else []
