"""Several methods on the same data: what to run, the processes that run it, the figures, tables and plots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dqnfed_flwr.compare.call import Compared as Compared
    from dqnfed_flwr.compare.call import compare as compare


def __getattr__(name: str) -> Any:
    """`compare`, imported when it is asked for: workers need little of it."""
    if name in ("Compared", "compare"):
        from dqnfed_flwr.compare import call

        return getattr(call, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
