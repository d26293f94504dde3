"""Whose words count: who contradicts itself, and who may be overruled where up to f clients may lie.

Two claims about one model that contradict each other are found in what a client says anyway, at no cost. A client that
is caught is named with both numbers. Its row and its vote do not count in that round: claims that exclude each other
are no evidence. Every check holds for an honest client whatever its loss looks like, up to the rounding of its model's
dtype.

Whether a client that opposes the others lies, or is the one that they serve worst, no server can tell. So a client is
overruled (`guarantee.tolerate`) for one round only: the next time that it takes part it has a *claim*, and nobody is
overruled in that round, unless it contradicted itself. `docs/admission.md` has the bound that follows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dqnfed_flwr.linalg.min_norm import hull_weights
from dqnfed_flwr.types import Float64Array, Probe

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


OVERRULED = "overruled"
"""Reason under which a client is counted whose row and vote do not count in a round."""
SET_ASIDE = "set-aside"
"""Reason under which a client is counted that has a vote on a step which its row has no part in."""
GAIN = 4.0
"""Rows are set aside where the others have a common step whose cosine with each is so many times as large."""
GAIN_AGAIN = 1.5
"""The same for those whose rows were set aside the last time too."""
ALIKE = 0.9
"""Two clients hold up a common step alike where without either the others reach this share of the best."""
SUSPECTS = 8
"""Clients that are looked at for each one that is set aside."""
MUTED = 8
"""Rounds in which a client that contradicted itself is not heard, twice as many each further time."""
APART_ROUNDS = 10
"""Rounds for which a client whose row was set aside has no part in the mean."""
CERTIFICATE = 1e-3
"""The hull of unit gradients comes this near to 0 at a model that counts as Pareto-stationary."""
LEAST_WEIGHT = 1e-6
"""Of a client in a certificate; what is below is rounding."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The shortest point of the convex hull of unit gradients: `weights` by client, above 0, and its `distance` from 0.

    The distance is also the largest cosine that one direction can have with every gradient (Desideri 2012). Where all
    gradients are 0 there are no weights, and the distance is 0; NaN where none is known.
    """

    weights: Mapping[int, float] = field(default_factory=dict)
    distance: float = math.nan

    @property
    def stationary(self) -> bool:
        """Whether no direction lowers every loss at a rate worth a step."""
        return self.distance <= CERTIFICATE


def certificate(gram: Float64Array, clients: Sequence[int]) -> Certificate:
    """That of the rows with the inner products `gram` [K, K]; rows of zeros have no direction and are left out."""
    if not len(gram):
        return Certificate()
    norms = np.sqrt(np.maximum(np.diag(gram), 0.0))
    moving = np.flatnonzero(norms > 0)
    if not moving.size:
        return Certificate(distance=0.0)
    cosines = gram[np.ix_(moving, moving)] / norms[moving] / norms[moving, None]
    weights = hull_weights(cosines).weights
    distance = math.sqrt(max(float(weights @ cosines @ weights), 0.0))
    return Certificate(
        {clients[k]: w for k, w in zip(moving.tolist(), weights.tolist(), strict=True) if w > LEAST_WEIGHT}, distance
    )


@dataclass(slots=True)
class Standing:
    """What is remembered of clients; all of it survives a checkpoint.

    Attributes
    ----------
    claims : set[int]
        Clients that were overruled the last time they took part, or whose row was set aside and whose loss did not
        fall; without those that ever contradicted themselves.
    caught : dict[int, int]
        How often each client contradicted itself.
    muted : dict[int, int]
        Last round in which such a client is probed and counted, but not heard: `MUTED` * 2^(n - 1) rounds the n-th
        time.
    apart : dict[int, int]
        Last round in which a client whose row was set aside has no part in the mean.
    aside, refused : set[int]
        Clients whose row was set aside, and that refused a candidate, the last time they took part.
    said : dict[int, tuple[int, float]]
        The last loss of each client, with the number of the model that it is of.
    entitlement : float
        e of the last round; infinite before the first, -infinite in the strict form.
    """

    claims: set[int] = field(default_factory=set)
    caught: dict[int, int] = field(default_factory=dict)
    muted: dict[int, int] = field(default_factory=dict)
    apart: dict[int, int] = field(default_factory=dict)
    aside: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    said: dict[int, tuple[int, float]] = field(default_factory=dict)
    entitlement: float = math.inf

    def catch(self, client: int, round_number: int) -> None:
        """A client contradicted itself in a round; once a round is enough."""
        if self.muted.get(client, 0) >= round_number:
            return
        self.caught[client] = self.caught.get(client, 0) + 1
        self.muted[client] = round_number + MUTED * 2 ** min(self.caught[client] - 1, 30) - 1
        self.claims.discard(client)

    def is_muted(self, client: int, round_number: int) -> bool:
        """Whether a client's row and vote do not count in a round."""
        return self.muted.get(client, 0) >= round_number

    def set_apart(
        self, clients: Iterable[int], aside: Collection[int], muted: Collection[int], round_number: int
    ) -> frozenset[int]:
        """Keep the muted, and those set aside for the second time in a row, out of the mean for some rounds.

        Returned are those that have been in it until now.
        """
        out = {*muted, *self.aside.intersection(aside)}
        new = frozenset(client for client in out if not self.is_apart(client, round_number))
        self.apart |= dict.fromkeys(out, round_number + APART_ROUNDS)
        self.aside = self.aside.difference(clients).union(aside)
        return new

    def is_apart(self, client: int, round_number: int) -> bool:
        """Whether a client has no part in the mean."""
        return self.apart.get(client, 0) >= round_number

    def took_part(
        self, clients: Iterable[int], unheard: Iterable[int], refused: Iterable[int], round_number: int
    ) -> None:
        """A round is over: clients that were `unheard` in it to their cost have a claim, the others of `clients` none.

        One that contradicted itself before has none either, and is not heard for some rounds.
        """
        again = set(unheard).intersection(self.caught)
        self.claims = self.claims.difference(clients).union(set(unheard).difference(again))
        for client in again:
            self.catch(client, round_number + 1)
        self.refused = self.refused.difference(clients).union(refused)


@dataclass(slots=True)
class Votes:
    """What is known of the participants of a step as judges of it.

    `heard` and `voteless` rise; the others are in the order in which they came, and all but `aside` grow from candidate
    to candidate.
    """

    heard: tuple[int, ...] = ()  # whose rows made the step
    voteless: tuple[int, ...] = ()  # without a vote from the start
    aside: tuple[int, ...] = ()  # whose row was set aside
    overruled: tuple[int, ...] = ()
    caught: tuple[int, ...] = ()  # contradicted themselves
    refused: tuple[int, ...] = ()  # refused a candidate
    refused_training: tuple[int, ...] = ()  # by their training losses alone
    refused_held_out: tuple[int, ...] = ()  # by their held-out parts, here or at a shorter length
    unable: tuple[int, ...] = ()  # asked to judge by a held-out part, and could not
    unreadable: int = 0  # clients that were asked and answered without saying what their loss is

    def counted(self, probes: Mapping[int, Probe]) -> dict[int, Probe]:
        """Those of the probes that count; all of them where none would."""
        out = {*self.voteless, *self.overruled, *self.caught}
        return {client: probe for client, probe in probes.items() if client not in out} or dict(probes)

    def note_refusals(self, refusing: Mapping[int, Probe]) -> None:
        """Keep who refused a candidate, and by which test."""
        by_held_out = [client for client, probe in refusing.items() if probe.held_out is False]
        by_training = [client for client in refusing if client not in by_held_out]
        self.refused = _joined(self.refused, refusing)
        self.refused_training = _joined(self.refused_training, by_training)
        self.refused_held_out = _joined(self.refused_held_out, by_held_out)

    def note_unable(self, probes: Mapping[int, Probe]) -> None:
        """Keep who answered without a test on a held-out part, where one was asked for."""
        self.unable = _joined(self.unable, [client for client, probe in probes.items() if probe.held_out is None])


def _joined(clients: tuple[int, ...], more: Iterable[int]) -> tuple[int, ...]:
    return (*clients, *(client for client in more if client not in clients))


def opposed(gram: Float64Array, clients: Sequence[int], most: int, before: Collection[int] = ()) -> list[int]:
    """The fewest clients, `most` at the most, without whom the others have a much better common step; often none.

    One after the other goes who holds up the common step most. Of the clients with the largest weights in the
    certificate that is, in a first attempt, the one without whom the others reach furthest; in a second one, which
    copies of one row cannot mislead, the one with the largest weight. The attempt after which the others reach further
    counts. Of several that are about equal, the one goes that agrees least with the others (the measure of Krum,
    Blanchard and others 2017, on unit rows). For those left out the last time, `before`, a smaller gain is enough.
    `gram` are the inner products of the clients' rows [K, K].
    """
    if not 0 < most < len(clients):
        return []
    first = reach(gram, clients, ())
    if GAIN_AGAIN * first >= 1:
        return []  # no cosine is above 1
    agreement = dict(zip(clients, _agreement(gram, most).tolist(), strict=True))
    attempts = [_one_by_one(gram, clients, most, agreement, by_weight=by_weight) for by_weight in (False, True)]
    attempts += [[client for client in clients if client in before][:most]]
    best, out = max(((reach(gram, clients, out), out) for out in attempts), key=lambda found: found[0])
    gain = GAIN_AGAIN if set(out) <= set(before) else GAIN
    if best < gain * first or best <= CERTIFICATE:
        return []
    for client in sorted(out, key=lambda client: -agreement[client]):
        fewer = [each for each in out if each != client]
        if reach(gram, clients, fewer) >= ALIKE * best:
            out = fewer
    return out


def _one_by_one(
    gram: Float64Array, clients: Sequence[int], most: int, agreement: Mapping[int, float], *, by_weight: bool
) -> list[int]:
    """Who is left out first, second and so on, `most` at the most."""
    out: list[int] = []
    while len(out) < most:
        weights = _without(gram, clients, out).weights
        suspects = sorted(weights, key=lambda client: -weights[client])[:SUSPECTS]
        if not suspects:
            break
        if by_weight:
            score = {client: weights[client] for client in suspects}
        else:
            score = {client: reach(gram, clients, [*out, client]) for client in suspects}
        enough = ALIKE * max(score.values()) - CERTIFICATE
        out.append(min((c for c in suspects if score[c] >= enough), key=lambda client: (agreement[client], client)))
    return out


def reach(gram: Float64Array, clients: Sequence[int], without: Collection[int]) -> float:
    """The largest cosine that one direction can have with the rows of all `clients` [K] but some."""
    return _without(gram, clients, without).distance


def _without(gram: Float64Array, clients: Sequence[int], without: Collection[int]) -> Certificate:
    index = [k for k, client in enumerate(clients) if client not in without]
    return certificate(gram[np.ix_(index, index)], [clients[k] for k in index])


def _agreement(gram: Float64Array, liars: int) -> Float64Array:
    """Sum of the K - 1 - f largest cosines of each row with the others [K]; infinite for rows of zeros."""
    norms = np.sqrt(np.maximum(np.diag(gram), 0.0))
    safe = np.where(norms > 0, norms, 1.0)
    cosines = gram / safe / safe[:, None]
    np.fill_diagonal(cosines, -np.inf)
    nearest = max(len(gram) - 1 - liars, 1)
    sums = np.sort(cosines, axis=1)[:, -nearest:].sum(axis=1)
    return np.where(norms > 0, sums, np.inf)
