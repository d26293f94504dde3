from __future__ import annotations

import math

from dqnfed_flwr.telemetry.events import Evaluated
from dqnfed_flwr.types import ClientReply, Evaluation


def test_clients_without_a_figure_are_named() -> None:
    def reply(test: float, validation: float) -> ClientReply:
        parts = (Evaluation(0, 5, 0.5, {"auroc": value}) for value in (test, validation))
        return ClientReply(10, test=next(parts), validation=next(parts))

    untested = ClientReply(10, test=Evaluation(0, 0, 0.0, {"auroc": 0.0}))
    found = Evaluated.of({3: untested, 1: reply(0.5, math.nan), 2: reply(math.nan, math.nan), 4: ClientReply(10)})
    assert (found.test, found.validation, found.test_loss) == ({1: 0.5}, None, 0.5)
    assert found.without_figure == {"test": [3, 2], "validation": [1, 2]}
