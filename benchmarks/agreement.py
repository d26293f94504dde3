"""How far the step of the real path lies from that of the paper's recursion in float64.

The path is the server's: rows into the held one by one, the two-sided method, the weighted sum. It is compared with
(7), (8), (12), (17) computed one client after another in float64, over random and conflicting sets of up to 50
clients, half of them large enough for the arithmetic of large models. Errors are |step - reference| / |reference|;
float32 rows are compared with the reference of the same rounded rows. `order_changes_bits` counts the sets whose step
differs in any bit when the replies arrive in another order.

`--large` adds rows of a large model: the float32 path, a single float32 matrix product, and the recursion in float32,
each against the recursion in float64, for rows that are independent, opposed, and nearly dependent.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import torch

from benchmarks._common import Bar, Json, arguments, report
from benchmarks._gradient_sets import STREAMED_VALUES, GradientSet, gradient_sets
from benchmarks._server import batch_of
from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.functional import newton_rate_step
from dqnfed_flwr.linalg.min_norm import two_sided_weights
from dqnfed_flwr.linalg.rows import RowSet
from dqnfed_flwr.methods._base import RoundRows, make_method
from dqnfed_flwr.strategy.solve import solve
from dqnfed_flwr.types import ClientReply, Float64Array, FloatArray

BARS = (
    Bar("worst_error_float64", "<=", 1e-10),
    Bar("worst_error_float32", "<=", 1e-5),
    Bar("order_changes_bits", "<=", 0),
    Bar("large_worst_error", "<=", 2e-6),
)
SHARES = {"independent": 1.0, "opposed": 0.3, "nearly dependent": 0.05}
"""Share of their mean that the rows of `--large` keep; the condition number is about one over its square."""
SETTINGS = Settings.from_mapping({"method": "dqn-fed", "dqn-fed.form": "two-sided", "dqn-fed.rate-spread": 0.0})


def real_step(rows: FloatArray, rates: Float64Array, order: Sequence[int]) -> FloatArray:
    """Step [D] of the server when the replies arrive in `order`."""
    clients, dim = rows.shape
    held = RowSet(clients, dim, torch.float32 if rows.dtype == np.float32 else torch.float64)
    for client in order:
        held.put(client, rows[client])
    replies = {client: ClientReply(1, loss=1.0, rate=float(rate)) for client, rate in enumerate(rates)}
    round_rows = RoundRows(held, tuple(range(clients)))
    step: FloatArray = solve(make_method(resolve(SETTINGS)), batch_of(replies, round_rows), round_rows).step.numpy()
    return step


def error(step: FloatArray, reference: FloatArray) -> float:
    """|step - reference| / |reference|."""
    return float(np.linalg.norm(step - reference) / np.linalg.norm(reference))


def measure(sets: int, seed: int, streamed_values: int = STREAMED_VALUES) -> dict[str, Json]:
    """Worst errors over the sets, in both precisions."""
    rng = np.random.default_rng((seed, 1))
    errors: dict[str, list[float]] = {"float64": [], "float32": [], "recursion_float32": []}
    conditions: list[float] = []
    changed = 0
    for drawn in gradient_sets(sets, seed, streamed_values):
        orders = [range(len(drawn.rows)), rng.permutation(len(drawn.rows)).tolist()]
        conditions.append(drawn.condition)
        differs = False
        for dtype in ("float64", "float32"):
            rows = drawn.rows.astype(dtype)
            reference = newton_rate_step(rows.astype(np.float64), drawn.rates)[0]
            first, second = (real_step(rows, drawn.rates, order) for order in orders)
            errors[dtype].append(error(first, reference))
            differs |= first.tobytes() != second.tobytes()
        errors["recursion_float32"].append(recursion_error(drawn))
        changed += differs
    return {
        "sets": sets,
        **{f"worst_error_{name}": max(values) for name, values in errors.items()},
        **{f"median_error_{name}": float(np.median(values)) for name, values in errors.items()},
        "order_changes_bits": changed,
        "worst_condition": max(conditions),
    }


def recursion_error(drawn: GradientSet) -> float:
    """Error of the recursion run in float32."""
    rows = drawn.rows.astype(np.float32)
    return error(newton_rate_step(rows, drawn.rates)[0], newton_rate_step(rows.astype(np.float64), drawn.rates)[0])


def measure_large(clients: int, parameters: int, seed: int) -> dict[str, Json]:
    """Errors for float32 rows of a large model, by kind of set."""
    kinds = {kind: large_errors(clients, parameters, share, seed) for kind, share in SHARES.items()}
    worst = {name: max(errors[name] for errors in kinds.values()) for name in ("path", "product", "recursion")}
    return {
        "large_clients": clients,
        "large_parameters": parameters,
        "large_worst_error": worst["path"],
        "large_worst_error_single_float32_product": worst["product"],
        "large_worst_error_recursion_float32": worst["recursion"],
        "large": kinds,
    }


def large_errors(clients: int, parameters: int, share: float, seed: int) -> dict[str, float]:
    """Errors of the float32 path, of a single float32 product and of the float32 recursion."""
    rng = np.random.default_rng((seed, 2))
    rows = rng.standard_normal((clients, parameters), dtype=np.float32)
    rows -= np.float32(1 - share) * rows.mean(axis=0)
    rates = rng.uniform(0.1, 1.0, clients)
    reference = newton_rate_step(rows.astype(np.float64), rates)[0]
    gram = (rows @ rows.T).astype(np.float64)
    weights = two_sided_weights((gram + gram.T) / 2, rates).weights
    return {
        "path": error(real_step(rows, rates, range(clients)), reference),
        "product": error(weights.astype(np.float32) @ rows, reference),
        "recursion": error(newton_rate_step(rows, rates)[0], reference),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, report."""
    parser = arguments(__doc__)
    parser.add_argument("--sets", type=int, default=200, metavar="N", help="sets drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--streamed-values",
        type=int,
        default=STREAMED_VALUES,
        metavar="N",
        help="values of the larger half of the sets",
    )
    parser.add_argument("--large", action="store_true", help="also rows of a large model (several GB of memory)")
    parser.add_argument("--large-clients", type=int, default=10, metavar="K")
    parser.add_argument("--large-parameters", type=int, default=11_000_000, metavar="D")
    options = parser.parse_args(argv)
    figures = measure(options.sets, options.seed, options.streamed_values)
    if options.large:
        figures |= measure_large(options.large_clients, options.large_parameters, options.seed)
    report("agreement", figures, BARS, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
