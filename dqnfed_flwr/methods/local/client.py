"""Local work without a federation: passes of SGD from round to round, and early stopping of the client's own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.client.curvature import Point
from dqnfed_flwr.client.work import MEMORY, BlindWork, LocalRequest, LocalResult, sgd
from dqnfed_flwr.types import under

LAST, BEST = "last/", "best/"
"""What is kept: the model as it was trained so far, and that of the lowest validation loss."""
MODEL, BUFFER = "model", "buffer."
LOSS, SINCE = "loss", "since"
_AFTER = f"{MEMORY}after/"


class LocalOnlyWork(BlindWork):
    """Row: zeros. Kept: the client's own model v_k [D] with its buffers, and the best one by validation loss.

    v_k begins at the first model received. Each round continues it by the passes of FedAvg, with their mini-batches,
    rate and dropout; `local.proximal` pulls back to v_k as the round began. After `early-stopping` rounds without a
    lower validation loss (0: never) it is trained no more.

    It is evaluated as it stands after the last round that the client took part in: the best one where there is a
    validation part. A client that never took part reports the start.
    """

    def perform(self, request: LocalRequest, point: Point) -> LocalResult:
        """Zeros; the client's own model moves on. The buffers received are put back."""
        number, nothing = request.task.round, torch.zeros_like(point.theta)
        kept = self._memory.before(number)
        if not self._stopped(kept):
            spec, module = self._loss.model.spec, self._loss.model.module
            received = spec.read_buffers(module)
            spec.write_buffers(under(LAST + BUFFER, kept) or received, module)
            own = kept.get(LAST + MODEL, point.theta)
            own = own - sgd(self._loss, own, self._settings.local, request.key)
            trained = {MODEL: own} | {BUFFER + name: value for name, value in spec.read_buffers(module).items()}
            last = {LAST + name: value for name, value in trained.items()}
            self._memory.keep(number, last | self._best(kept, trained))
            spec.write_buffers(received, module)
        return LocalResult(nothing, self.plain_rate(nothing))

    def evaluated(self, request: LocalRequest) -> Tensor:
        """The client's own model, with its buffers in place; the start for a client that has none."""
        found = _chosen(self._memory.before(request.task.round))
        if not found:
            return request.line.theta
        self._loss.model.spec.write_buffers(under(BUFFER, found), self._loss.model.module)
        own: Tensor = found[MODEL]
        return own

    def _best(self, kept: Mapping[str, Tensor], trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The best model with its loss and the rounds since, now that `trained` is there; empty without validation.

        A loss that is no number is above all others.
        """
        validation = self._held_out("validation")
        if validation is None:
            return {}
        loss = self._loss.evaluate(trained[MODEL], validation).loss
        loss = math.inf if math.isnan(loss) else loss
        before = under(BEST, kept)
        if before and not loss < before[LOSS].item():
            return {BEST + name: value for name, value in before.items()} | {BEST + SINCE: before[SINCE] + 1}
        figures = {LOSS: torch.tensor(loss, dtype=torch.float64), SINCE: torch.tensor(0)}
        return {BEST + name: value for name, value in (dict(trained) | figures).items()}

    def _stopped(self, kept: Mapping[str, Tensor]) -> bool:
        patience, since = self._settings.early_stopping, kept.get(BEST + SINCE)
        return bool(patience) and since is not None and int(since.item()) >= patience


def own_model(state: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The client's own model, by what `DQNFedClient.export_state` gave: `model` [D] and `buffer.<name>`.

    Empty for a client that never took part.
    """
    return _chosen(under(_AFTER, state))


def _chosen(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The best model where there is one, else the last."""
    found = under(BEST, kept) or under(LAST, kept)
    return {name: value for name, value in found.items() if name == MODEL or name.startswith(BUFFER)}
