"""Where the figures of a run come from: the data and the code, also where it was interrupted in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dqnfed_flwr.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Provenance:
    """Data and code of a run.

    Attributes
    ----------
    fingerprint : str | None
        Of the data, see `dqnfed_flwr.data.sets.fingerprint`; None where the server does not see them.
    commits : tuple[str | None, ...]
        Of the code, in the order in which the run went on with them; None for one that is not known.
    """

    fingerprint: str | None = None
    commits: tuple[str | None, ...] = ()

    def as_record(self) -> dict[str, Any]:
        """Return what a checkpoint and `run.json` hold of it."""
        return {"fingerprint": self.fingerprint, "commits": list(self.commits)}

    def continuing(self, record: Mapping[str, Any]) -> Provenance:
        """Return the provenance of a run that goes on here from the checkpoint of `record`.

        What was done by versions that noted neither counts as not known.

        Raises
        ------
        CheckpointError
            If the run began on other data.
        """
        then = record.get("fingerprint")
        if differ(then, self.fingerprint):
            raise CheckpointError(
                f"the checkpoint belongs to a run on other data; fingerprint: {then} then, {self.fingerprint} now. Put "
                "the data of then back, or start anew"
            )
        commits = [*record.get("commits", [None])]
        commits += [commit for commit in self.commits if [commit] != commits[-1:]]
        return Provenance(self.fingerprint if then else None, tuple(commits))


def differ(then: str | None, now: str | None) -> bool:
    """Tell whether two fingerprints are of different data; one that is not known differs from none."""
    return then is not None and now is not None and then != now
