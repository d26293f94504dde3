"""The package's own clients where the server sees no row: they agree on secrets first, and give one sum a model.

An exchange brings sketches in place of rows. `direction` then asks, in an exchange of its own, for the one sum that the
step takes. A client that does not answer is asked for the same sum again. Where it stays away, or the sum is none of
the rows, no other one is asked for at this model: the last step is tried again where every loss falls along it, and
else the round ends without a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.common.logger import log
from torch import Tensor

from dqnfed_flwr.config import protection_of
from dqnfed_flwr.errors import ConfigError, RunError, SumError
from dqnfed_flwr.linalg.sketched_rows import SketchedRows
from dqnfed_flwr.masked import ALONG, PEERS
from dqnfed_flwr.masked.budget import DOUBT
from dqnfed_flwr.masked.member import model_digest
from dqnfed_flwr.masked.sums import effective, too_few
from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.run_files import ASKED, replacing
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.strategy.checkpoint import damaged, output_directory
from dqnfed_flwr.strategy.checkpointer import KeepsClientState
from dqnfed_flwr.strategy.collect import Collected
from dqnfed_flwr.strategy.hearing import Hearing
from dqnfed_flwr.strategy.masked_group import MaskedGroup
from dqnfed_flwr.strategy.own_clients import OwnClients
from dqnfed_flwr.strategy.schedule import Schedule
from dqnfed_flwr.strategy.side import Direction, TooFewReplies
from dqnfed_flwr.strategy.solve import Solved, make_batch
from dqnfed_flwr.strategy.state import BUDGET_SPENT, PendingStep
from dqnfed_flwr.strategy.step_search import NO_STEP
from dqnfed_flwr.telemetry.events import Spent
from dqnfed_flwr.types import Combination, Sees

AGAIN = "last-step-again"
"""Status of a round whose step is the last one once more, for want of a sum."""


def check_masked(run: RunPlan, method: Method, dim: int) -> None:
    """Refuse (`ConfigError`) a method that needs more of rows than products and one sum, before anything is sent."""
    words = f"privacy.mode: masked, where the server has inner products of rows and one sum, but {run.method.name}"
    remedy = "; take another method, see privacy.md, or privacy.mode open"
    if more := method.sees & ~Sees.PRODUCTS:
        kinds = {Sees.COLUMNS: "values of single rows", Sees.SUM: "sums of its own"}
        raise ConfigError(f"{words} reads {' and '.join(w for kind, w in kinds.items() if kind in more)}{remedy}")
    if vectors := method.extras(dim).vectors:
        raise ConfigError(f"{words} needs more vectors of each client: {', '.join(vectors)}{remedy}")
    if method.one_row:
        raise ConfigError(f"{words} takes the row of one client for its step{remedy}")
    if method.inner.rests:
        raise ConfigError(f"{words} makes no step of them: its models stay with the clients{remedy}")


class MaskedClients(OwnClients):
    """`OwnClients` who agree on secrets as this is made, and show their rows only in sums."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        check_masked(self._run, self.method, self._state.theta.numel())
        if self._run.work.passes and self._state.buffers:
            raise ConfigError(
                f"privacy.mode: masked, but local passes change the model's buffers ({next(iter(self._state.buffers))} "
                "and others), which each client would send; use a model without, such as resnet18-gn"
            )
        self._protection = protection_of(self._settings)
        output, lives_here = output_directory(self._settings), isinstance(self._grid, KeepsClientState)
        self._noted = None if not self._protection or output is None or lives_here else output / ASKED
        self._lost = 0  # exchanges that were asked and are in no checkpoint: nodes make other noise in a run anew
        if self._noted is not None and self._settings.resume and self._noted.exists():
            try:
                self._lost = max(int(self._noted.read_text()) - self._state.exchange, 0)
            except ValueError as error:
                raise damaged(self._noted, error) from error
        self._group = MaskedGroup(self._registry, self._grid, self._run)
        self._group.agree(self._state.cost)

    @property
    def privacy(self) -> Spent | None:
        """What the exchanges so far have spent; `rise` is that of the client with the fewest records, if any judges."""
        found = self._protection
        if found is None:
            return None
        budget, fewest = found.budget, min(member.num_examples for member in self._registry.members.values())
        spent = budget.spent(self._asked)
        rise = found.rise(fewest, self._settings.clients) if self._run.rule.judged_by == "test" else None
        return Spent(spent, budget.delta, budget.epsilon, rise, DOUBT)

    def limits(self, losses: Mapping[int, float]) -> dict[int, float]:
        """With what the noise on told losses asks for."""
        found, known = self._protection, self._registry.members
        if found is None:
            return super().limits(losses)
        return {client: loss + found.slack(known[client].num_examples) for client, loss in losses.items()}

    def ready(self, pending: PendingStep | None) -> str:
        """As for open rows; a run whose budget is for one exchange more, which its end may need, is over."""
        if self._protection and self._asked + 1 >= self._protection.budget.exchanges:
            self._state.status = BUDGET_SPENT
            words = "The budget of %d exchanges is spent: the run ends; a run with more rounds, or epsilon, has more"
            log(WARNING, words, self._protection.budget.exchanges)
            return ""
        return super().ready(pending)

    def check(self, collected: Collected, schedule: Schedule) -> None:
        """As for open rows, and there must be enough for a sum."""
        super().check(collected, schedule)
        if len(collected.trained) <= PEERS:
            what = f"{len(collected.trained)} usable replies in round {schedule.round}; a sum needs {PEERS + 1}"
            raise TooFewReplies(what, list(collected.dropped.values()))

    def direction(self, collected: Collected, hearing: Hearing, schedule: Schedule) -> Direction:
        """The method's step from the sum of its weights; where there is none, the last step or none."""
        rows, last = collected.rows.held, self._state.last
        if not isinstance(rows, SketchedRows):
            raise RunError(f"rows of {type(rows).__name__}; masked clients send sketches")
        clients = {slot: client for client, slot in hearing.slots.items() if client in hearing.heard}
        samples = {client: reply.num_examples for client, reply in collected.trained.items()}
        rows.ask_by(partial(self._sum, clients, samples, schedule.tasks[schedule.train[0]].exchange))
        if last is not None and self.method.reference_rows:
            said = {hearing.slots[client]: reply.figures[ALONG] for client, reply in collected.trained.items()}
            rows.know(rows.capacity - 1, last.step, said)
        try:
            return super().direction(collected, hearing, schedule)
        except SumError as why:
            log(WARNING, "Round %d: %s. No other sum is asked for at this model", schedule.round, why)
            return self._without_sum(collected, hearing, schedule)

    @property
    def _asked(self) -> int:
        """Exchanges in all lives of the run."""
        return self._state.exchange + self._lost

    def _exchange(self, schedule: Schedule) -> Collected:
        """As for open rows; it is counted on the disk before, so that no resume forgets it."""
        if self._noted is not None:
            path, count = self._noted, str(self._asked + 1).encode()
            self._patience.write(path, partial(_write, path, count))
        return super()._exchange(schedule)

    def _without_sum(self, collected: Collected, hearing: Hearing, schedule: Schedule) -> Direction:
        """The last step once more, where every loss falls along it; else no step."""
        rows = collected.rows_of(hearing.heard, hearing.unheard)
        batch = make_batch(collected.trained, hearing, rows, schedule.round, float(self._state.theta.norm()))
        held, weights, last = rows.held, np.zeros(rows.capacity), self._state.last
        slots = (*rows.slots, *rows.others)
        if last is not None and self.method.reference_rows:
            falls = held.gram((*slots, rows.capacity - 1))[-1, :-1]
            if (falls[: len(rows.slots)] > 0).all():
                weights[-1] = 1.0
                found = Combination(weights, status=AGAIN)
                return Direction(batch, Solved(found, last.step, float(last.step.norm()), falls), self._state.buffers)
        nothing = Solved(
            Combination(weights, status=NO_STEP), torch.zeros_like(self._state.theta), 0.0, np.zeros(len(slots))
        )
        return Direction(batch, nothing, self._state.buffers)

    def _sum(
        self,
        clients: Mapping[int, int],
        samples: Mapping[int, int],
        exchange: int,
        weights: Mapping[int, float],
        longest: float,
    ) -> Tensor:
        """The sum of rows by `weights`, which are by slot as `clients` are; `SumError` where it cannot be had.

        The clients refuse one of few samples, by what they told each other; here is known what they told the server.
        """
        theta, cost = self._state.theta, self._state.cost
        by_client = {client: weights.get(slot, 0.0) for slot, client in clients.items()}
        sizes, averaged = [abs(weight) for weight in by_client.values()], self._settings.local.averaged
        found_in = effective(sizes, [averaged(samples[client]) for client in by_client])
        if words := too_few(found_in, self._settings.privacy.min_samples):
            raise SumError(f"clients {sorted(by_client)[:12]} would give {words}")
        found = self._group.sum(exchange, model_digest(theta.numpy()), by_client, longest, theta.numel(), cost)
        return torch.from_numpy(found).to(theta.dtype)


def _write(path: Path, content: bytes) -> None:
    with replacing(path, sync=True) as file:
        file.write(content)
