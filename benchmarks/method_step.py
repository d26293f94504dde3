"""What the server owes after the last reply with every method, against FedAvg in the same machinery.

For each method: the last row into the held, the solve, the weighted sum, by the code that the strategy runs. The
other rows were taken in before, once. FedAvg and the method take turns on the same rows, and the ratio is of medians.
The bar holds for methods that need inner products only; others are shown beside them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

import numpy as np

from benchmarks._common import Bar, Json, arguments, median, report, seconds_once
from benchmarks._server import EXAMPLES, batch_of, drawn_rates, drawn_row
from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.config.methods import METHODS
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.linalg.rows import RowSet
from dqnfed_flwr.methods._base import GramMethod, Method, RoundRows, make_method
from dqnfed_flwr.strategy.solve import solve
from dqnfed_flwr.types import ClientReply

BAR = Bar("worst_inner_product_ratio", "<=", 1.25)
ROUNDS = 10_000
"""Enough for methods that go through stages."""
VARIANTS = {
    "dqn-fed": {},
    "dqn-fed, one-sided": {"dqn-fed.form": "one-sided"},
    "dqn-fed, two-sided": {"dqn-fed.form": "two-sided"},
}


class Server:
    """All rows but the last, taken in once; the last comes again for every method.

    Parameters
    ----------
    clients, parameters : int
        K and D.
    spare : int
        Slots for what methods put behind the clients' rows.
    """

    def __init__(self, clients: int, parameters: int, spare: int) -> None:
        self._held = RowSet(clients + spare, parameters)
        for client in range(clients - 1):
            self._held.put(client, drawn_row(client, parameters))
        self._last = drawn_row(clients - 1, parameters)
        losses = np.random.default_rng(clients).uniform(0.5, 2.0, clients)
        self._replies = {
            client: ClientReply(EXAMPLES, loss=float(loss), rate=float(rate))
            for client, (loss, rate) in enumerate(zip(losses, drawn_rates(clients) * parameters, strict=True))
        }

    def finish(self, method: Method) -> None:
        """The last reply arrives, and the step is made."""
        clients = len(self._replies)
        self._held.put(clients - 1, self._last)
        rows = RoundRows(self._held, tuple(range(clients)))
        solve(method, batch_of(self._replies, rows), rows)

    def begin(self) -> None:
        """As before the last reply."""
        for slot in self._held.filled:
            if slot >= len(self._replies) - 1:
                self._held.drop(slot)


def candidates(clients: int) -> dict[str, Method]:
    """A fresh method of every name that needs nothing but rows from its clients."""
    named = {name: {"method": name} for name in METHODS if name != "dqn-fed"} | VARIANTS
    methods = {}
    for name, mapping in named.items():
        method = make_method(resolve(Settings.from_mapping({"clients": clients, "rounds": ROUNDS, **mapping})))
        if _needs_rows_alone(method):
            methods[name] = method
    return methods


def _needs_rows_alone(method: Method) -> bool:
    try:
        asked = method.extras(1)
    except ConfigError:  # a method that asks for more than this model has
        return False
    return not asked.vectors and not asked.figures


def measure(clients: int, parameters: int, repeats: int, only: Sequence[str]) -> dict[str, Json]:
    """Seconds of every method, and their ratio to FedAvg's."""
    methods = {name: method for name, method in candidates(clients).items() if not only or name in only}
    server = Server(clients, parameters, max(method.reference_rows for method in methods.values()) or 1)
    fedavg = make_method(resolve(Settings.from_mapping({"method": "fedavg"})))
    results: list[dict[str, Json]] = []
    for name, method in methods.items():
        seconds: dict[str, list[float]] = {"method": [], "fedavg": []}
        for _ in range(repeats + 1):
            for who, which in (("fedavg", fedavg), ("method", method)):
                server.begin()
                seconds[who].append(seconds_once(partial(server.finish, which)))
        ours, theirs = (median(seconds[who][1:]) for who in ("method", "fedavg"))
        inner = isinstance(method, GramMethod)
        results.append(
            {
                "method": name,
                "needs": "inner products" if inner else "vectors",
                "seconds": ours,
                "fedavg_seconds": theirs,
                "over_fedavg": ours / theirs,
            }
        )
    ratios = [float(str(row["over_fedavg"])) for row in results if row["needs"] == "inner products"]
    return {
        "clients": clients,
        "parameters": parameters,
        "repeats": repeats,
        "worst_inner_product_ratio": max(ratios, default=float("nan")),
        "methods": results,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, report."""
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=100, metavar="K")
    parser.add_argument("--parameters", type=int, default=650_000, metavar="D")
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="turns of which the median counts")
    parser.add_argument("--only", action="append", default=[], metavar="METHOD", help="leave the others out")
    options = parser.parse_args(argv)
    report(
        "server step by method",
        measure(options.clients, options.parameters, options.repeats, options.only),
        (BAR,),
        options.json,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
