"""Why a run did not complete, and whether it can go on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dqnfed_flwr.config import Settings

MOST_COMPLAINTS = 12
LOST = ("No heartbeat received", "Task failed with unknown error")
"""What Flower says of a run whose ServerApp was killed, or was ended because its SuperExec was."""
NO_CHECKPOINT = "no checkpoint there"
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_COMPLAINT = re.compile(
    r"is left out: |does not take part: |usable replies|clients came within|clients can take part|Error\b: "
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that did not complete.

    Attributes
    ----------
    run_id : str
        Flower's.
    record : dict[str, Any]
        What Flower says of it.
    log : str
        What it has logged.
    """

    run_id: str
    record: dict[str, Any]
    log: str

    @property
    def words(self) -> str:
        """Why, in Flower's words and in those of the clients."""
        details = str(self.record.get("status-details") or "").strip() or "the SuperLink gives no reason"
        complaints = (f"  {line}" for line in complaints_in(self.log))
        return "\n".join([f"run {self.run_id} ended as {self.record['status']}: {details}", *complaints])

    def next_settings(self, settings: Settings) -> Settings | None:
        """Settings of the run that goes on after this one; None where going on would end in the same way.

        A ServerApp that was lost with its process goes on from its checkpoint. If it was lost before the first one, and
        nobody but us asked for that, it begins anew.

        Parameters
        ----------
        settings : Settings
            As the operator gave them.
        """
        details = str(self.record.get("status-details"))
        if any(words in details for words in LOST):
            return Settings.from_mapping({**settings.flat(), "resume": True})
        return settings if NO_CHECKPOINT in details and not settings.resume else None


def complaints_in(log: str) -> list[str]:
    """Lines of a log that tell of clients left out and of errors, each once, the last ones."""
    plain = (_STYLE.sub("", line).strip() for line in log.splitlines())
    found = dict.fromkeys(line for line in plain if _COMPLAINT.search(line))
    return list(found)[-MOST_COMPLAINTS:]
