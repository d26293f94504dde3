"""When a node is queried again, and what counts as news of it."""

from __future__ import annotations

from dqnfed_flwr.strategy.standing import ASK_AGAIN_SECONDS, LONGEST_SILENCE, Standing
from dqnfed_flwr.telemetry.events import DroppedClient

MISFIT = DroppedClient(3, "other-classes", "has 4 classes where the others have 10")


def test_silence_doubles_the_pause_up_to_the_longest_and_an_answer_ends_it() -> None:
    standing, pauses = Standing(), []
    for _ in range(9):
        standing.queried(1000.0)
        pauses.append(standing.again - 1000.0)
    assert pauses[:3] == [ASK_AGAIN_SECONDS, 2 * ASK_AGAIN_SECONDS, 4 * ASK_AGAIN_SECONDS]
    assert pauses[-1] == pauses[-2] == LONGEST_SILENCE
    standing.answered()
    standing.queried(1000.0)
    assert standing.again == 1000.0 + ASK_AGAIN_SECONDS


def test_the_same_reason_is_news_once() -> None:
    standing = Standing()
    assert [standing.refused(why, 5.0) for why in ("no file", "no file", "no labels")] == [True, False, True]
    assert standing.again == 5.0 + ASK_AGAIN_SECONDS
    standing.accepted()
    assert standing.refused("no labels", 6.0)


def test_a_misfit_is_refused_too_until_it_fits() -> None:
    standing = Standing()
    assert [standing.turned_away(MISFIT, 5.0), standing.turned_away(MISFIT, 65.0)] == [True, False]
    assert standing.refusal == "other-classes: client 3: has 4 classes where the others have 10"
    assert standing.again == 65.0 + ASK_AGAIN_SECONDS
    standing.accepted()
    assert (standing.refusal, standing.misfit) == ("", None)
