"""When a node is queried again, and what counts as news of it."""

from __future__ import annotations

from dqnfed_flwr.strategy.client_registry import ASK_AGAIN_SECONDS, LONGEST_PAUSE, NodeStatus
from dqnfed_flwr.telemetry.events import DroppedClient

MISFIT = DroppedClient(3, "other-classes", "has 4 classes where the others have 10")


def test_silence_doubles_the_pause_up_to_the_longest_and_an_answer_ends_it() -> None:
    status, pauses = NodeStatus(), []
    for _ in range(9):
        status.queried(1000.0)
        pauses.append(status.next_query - 1000.0)
    assert pauses[:3] == [ASK_AGAIN_SECONDS, 2 * ASK_AGAIN_SECONDS, 4 * ASK_AGAIN_SECONDS]
    assert pauses[-1] == pauses[-2] == LONGEST_PAUSE
    status.answered()
    status.queried(1000.0)
    assert status.next_query == 1000.0 + ASK_AGAIN_SECONDS


def test_the_same_reason_is_news_once() -> None:
    status = NodeStatus()
    assert [status.refused(why, 5.0) for why in ("no file", "no file", "no labels")] == [True, False, True]
    assert status.next_query == 5.0 + ASK_AGAIN_SECONDS
    status.accepted()
    assert status.refused("no labels", 6.0)


def test_a_misfit_is_refused_too_until_it_fits() -> None:
    status = NodeStatus()
    assert [status.rejected(MISFIT, 5.0), status.rejected(MISFIT, 65.0)] == [True, False]
    assert status.refusal == "other-classes: client 3: has 4 classes where the others have 10"
    assert status.next_query == 65.0 + ASK_AGAIN_SECONDS
    status.accepted()
    assert (status.refusal, status.misfit) == ("", None)
