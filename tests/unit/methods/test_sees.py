"""What methods read of rows is what they declare: so a server without single rows can refuse by the type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.config.methods import METHODS
from dqnfed_flwr.errors import RunError
from dqnfed_flwr.linalg.row_store import DType, HostRows, RowMemory
from dqnfed_flwr.methods._base import GramMethod, LayerMethod, Method, RoundRows, VectorMethod, make_method
from dqnfed_flwr.methods.absent import AbsentClients
from dqnfed_flwr.types import Float64Array, Sees
from tests.helpers.rounds import decide, round_rows
from tests.helpers.runs import TINY

TOGETHER, DIM = 3, 7
ALONE = [
    name for name, profile in METHODS.items() if not profile.last_stage(Settings())
]  # others hand over to one of these
ANCHORS = ("fedavg", "momentum", "median", "fedfv", "fedlf", "fedadam", "trimmed-mean")
CASES: list[dict[str, str | int]] = [{"method": name} for name in (*ALONE, "torchjd:UPGrad", "torchjd:ConFIG")]
CASES.remove({"method": "fednl"})  # whose default is for networks
CASES += [{"method": "dqn-fed", "dqn-fed.anchor": anchor} for anchor in ANCHORS]
CASES += [{"method": "fednl", "fednl.form": form} for form in ("exact", "diagonal")]
CASES += [{"method": "dqn-fed", "dqn-fed.absent-rounds": 0}]
Case = dict[str, str | int]
every_method = pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
every_share = pytest.mark.parametrize("participation", [1.0, 0.5])


def made(case: Case, participation: float) -> Method:
    """With three clients in a round, of three or of six."""
    clients = round(TOGETHER / participation)
    settings = Settings.from_mapping({**TINY, **case, "clients": clients, "participation": participation})
    return make_method(resolve(settings))


def steps(method: Method, participation: float, memory: RowMemory | None = None) -> list[Tensor]:
    """Those of two rounds; of six clients others take part in the second one."""
    draw, found = np.random.default_rng(5), []
    for number in (1, 2):
        first = TOGETHER * (number - 1) if participation < 1 else 0
        rows = draw.standard_normal((TOGETHER, DIM)) + 1
        clients = range(first, first + TOGETHER)
        found.append(decide(method, rows, clients=clients, number=number, memory=memory or RowMemory()).step)
    return found


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Sees]:
    """What is read of rows through `RoundRows`."""
    found: list[Sees] = []
    reading = RoundRows._read

    def noted(self: RoundRows, what: Sees) -> object:
        found.append(what)
        return reading(self, what)

    monkeypatch.setattr(RoundRows, "_read", noted)
    return found


@every_share
@every_method
def test_a_method_declares_what_it_reads_and_no_sums_or_columns_besides(
    case: Case, participation: float, read: list[Sees]
) -> None:
    method = made(case, participation)
    steps(method, participation)
    used = Sees.NORMS
    for what in read:
        used |= what
    spare = Sees.SUM if case["method"] == "dqn-fed" else Sees.NORMS  # the mean, where its anchor begins anew
    assert used in method.sees
    assert method.sees & (Sees.SUM | Sees.COLUMNS) & ~spare == used & (Sees.SUM | Sees.COLUMNS) & ~spare


@every_method
def test_the_type_says_so(case: Case) -> None:
    method = made(case, 1.0)
    if isinstance(method, GramMethod):
        assert method.sees in Sees.PRODUCTS
    if isinstance(method, LayerMethod | VectorMethod):
        assert method.sees & (Sees.SUM | Sees.COLUMNS)


def test_a_method_of_ones_own_that_says_nothing_may_read_all() -> None:
    assert Method.sees == VectorMethod.sees == Sees.ALL == Sees.PRODUCTS | Sees.SUM | Sees.COLUMNS
    assert Sees.NORMS in Sees.PRODUCTS


@pytest.mark.parametrize(
    ("what", "reading"),
    [
        (Sees.PRODUCTS, lambda rows: rows.gram(rows.slots)),
        (Sees.SUM, lambda rows: rows.combine(np.ones(2))),
        (Sees.COLUMNS, lambda rows: rows.columns(slice(0, 1))),
        (Sees.COLUMNS, lambda rows: rows.copies()),
    ],
)
def test_what_is_not_declared_is_not_given(what: Sees, reading: object) -> None:
    assert callable(reading)
    held = round_rows(np.eye(2)).held
    reading(RoundRows(held, (0, 1), sees=what))
    with pytest.raises(RunError, match=rf"the method reads {what.name} of rows, which it does not declare in `sees`"):
        reading(RoundRows(held, (0, 1), sees=Sees.ALL & ~what))


class SealedRows(HostRows):
    """A form whose clients' rows nobody sees one by one, as it would be where they come masked."""

    def vector(self, slot: int) -> Tensor:
        """A sum as any other."""
        return self.wide_sum(np.eye(self.shape[0])[slot])

    def columns(self, slots: Sequence[int], part: slice) -> Float64Array:
        """None."""
        pytest.fail("a method read columns")


class Sealed(RowMemory):
    """Gives no other form."""

    def rows(self, capacity: int, dim: int, dtype: DType) -> HostRows:
        """Sealed ones."""
        return SealedRows(capacity, dim, dtype)


@every_share
@every_method
def test_whoever_declares_no_columns_does_without_single_rows(case: Case, participation: float) -> None:
    if Sees.COLUMNS in made(case, participation).sees:
        return
    plain, sealed = (steps(made(case, participation), participation, memory) for memory in (None, Sealed()))
    assert all(one.equal(other) for one, other in zip(plain, sealed, strict=True))


def test_to_remember_rows_is_to_read_them() -> None:
    assert AbsentClients(3, 2, 4).sees is Sees.COLUMNS
    assert AbsentClients(3, 4, 4).sees is AbsentClients(0, 2, 4).sees is Sees.NORMS


def sources(*rooms: str) -> Iterator[tuple[Path, str]]:
    package = Path(__file__).parents[3] / "dqnfed_flwr"
    for room in rooms:
        for file in (package / room).rglob("*.py"):
            yield file.relative_to(package), file.read_text("utf-8")


def test_methods_reach_rows_through_what_they_declare_alone() -> None:
    """Only the anchor, which is served as the server serves a method, has the rows themselves."""
    found = {str(file) for file, text in sources("methods") if ".held" in text}
    assert found == {"methods/_base.py", "methods/dqn_fed/anchor.py"}


def test_forms_of_rows_are_known_to_linalg_alone() -> None:
    rooms = ("methods", "strategy", "guarded", "client", "engine", "compare", "audit")
    assert not [file for file, text in sources(*rooms) if "HostRows" in text or "SpilledRows" in text]
