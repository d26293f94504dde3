"""What is known of every key stands with its field; nothing else lists keys by their nature."""

from __future__ import annotations

import pytest
from pydantic import Field

from dqnfed_flwr.config import KNOWN, Settings
from dqnfed_flwr.config.methods import METHODS
from dqnfed_flwr.schema.group import Group, always, known_of, own, setting


def keys(nature: str, value: object = True) -> set[str]:
    return {key for key, known in KNOWN.items() if getattr(known, nature) == value}


def test_every_key_says_what_is_known_of_it() -> None:
    assert KNOWN.keys() == Settings().flat().keys()


def test_a_field_that_does_not_say_it_is_refused() -> None:
    class Silent(Group):
        key: int = Field(1, description="of no nature")

    with pytest.raises(TypeError, match=r"of no nature: .*`setting` or `own`"):
        known_of(Silent.model_fields["key"])


def test_a_setting_has_default_limits_and_nature() -> None:
    class Loud(Group):
        key: int = setting(3, "how loud", about="machine", changes="nothing", path=True, ge=1)
        mine: float = own(0.5, "of a method", gt=0)

    assert (Loud().key, Loud().mine) == (3, 0.5)
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        Loud(key=0)
    known = known_of(Loud.model_fields["key"])
    assert (known.about, known.changes, known.path, known.on_resume, known.read) == (
        *("machine", "nothing"),
        *(True, False, always),
    )
    assert known_of(Loud.model_fields["mine"]).about == "method"


def test_keys_have_the_nature_that_released_versions_gave_them() -> None:
    silent = {"output", "resume", "deadline", "retries", "checkpoint-every", "metrics", "metrics-clients"}
    details = {"split.validation-fraction", "device", "evaluate-every", "local.threads", "local.chunk"}
    assert keys("changes", "nothing") >= silent
    assert keys("changes", "details") >= details
    assert keys("on_resume") >= silent | {"rounds", "quorum", "early-stopping", "step.ladder"}
    assert keys("path") >= {"output", "metrics", "start.model"}
    assert {key for key, known in KNOWN.items() if known.size} >= {"rounds", "clients", "participation"}
    assert {key for key, known in KNOWN.items() if known.instead} == {"method", "seed", "output", "resume"}
    assert keys("shared") >= {"data", "partition", "clients", "num-classes", "split.alpha", "attack.kind", "seed"}
    assert keys("shared") & {"rounds", "local.lr", "start.model", "model"} == set()


def test_keys_of_a_method_are_about_it() -> None:
    groups = {profile.key for profile in METHODS.values() if profile.settings}
    mine = {key for key in KNOWN if key.partition(".")[0] in groups}
    assert mine | {"method"} == keys("about", "method")
    assert len(groups) > 20
