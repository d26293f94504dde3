"""Gramian and weighted sums against float64 products of the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.linalg import sweeps
from dqnfed_flwr.linalg.row_store import DeviceRows, HostRows, RowMemory
from dqnfed_flwr.linalg.rows import IN_MEMORY, LONGEST_ROW, SMALL, RowSet
from dqnfed_flwr.linalg.sweeps import BLOCK, FEW_COLUMNS, PAIR_BLOCK, SEGMENT, STRIP, TILE
from dqnfed_flwr.types import Float64Array, FloatArray
from tests.helpers.gradient_sets import conflicting_set, random_set

WIDE = SMALL // 3 + BLOCK + 7  # three rows of it are treated as float32; neither whole blocks nor whole segments
DTYPES = {"float32": torch.float32, "float64": torch.float64}
dims = st.sampled_from([1, 2, BLOCK - 1, BLOCK, BLOCK + 1, SEGMENT // 16 + 5])
ON_DEVICE = RowMemory(device=torch.device("cpu"))


@pytest.fixture(scope="module", params=[IN_MEMORY, ON_DEVICE], ids=["host", "device"], autouse=True)
def form(request: pytest.FixtureRequest) -> Iterator[RowMemory]:
    """Where rows lie if nothing is said: every law of this file holds in both forms."""
    assert RowSet.__init__.__kwdefaults__ is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RowSet.__init__.__kwdefaults__, "memory", request.param)
        yield request.param


def filled(rows: FloatArray, order: list[int] | None = None, capacity: int = 0) -> RowSet:
    held = RowSet(capacity or len(rows), rows.shape[1], DTYPES[str(rows.dtype)])
    for slot in order or range(len(rows)):
        held.put(slot, rows[slot])
    return held


def relative(found: FloatArray, exact: Float64Array) -> float:
    """Largest error, in units of the product of the norms."""
    norms = np.sqrt(np.diag(exact))
    return float(np.max(np.abs(found - exact) / np.outer(norms, norms)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, BLOCK, SEGMENT // 16 + 5, WIDE])
def test_the_gramian_is_that_of_the_rows_in_float64(rng: np.random.Generator, dtype: str, dim: int) -> None:
    rows = rng.standard_normal((3, dim)).astype(dtype)
    exact = rows.astype(np.float64) @ rows.astype(np.float64).T
    held = filled(rows)
    assert held.exact == (dtype == "float64" or dim < WIDE)
    # A float32 block of 1024 columns, summed pairwise, is good to a few units of 6e-8.
    assert relative(held.gram(range(3)), exact) < (1e-14 if held.exact else 1e-6)


@given(order=st.permutations(range(5)), dim=dims, dtype=st.sampled_from(list(DTYPES)), seed=st.integers(0, 99))
def test_any_order_of_arrival_gives_the_same_bits(order: list[int], dim: int, dtype: str, seed: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((5, dim)).astype(dtype)
    assert np.array_equal(filled(rows, order).gram(range(5)), filled(rows).gram(range(5)))


@pytest.mark.parametrize("dim", [SMALL // 3 + 1, WIDE, SEGMENT * 6 + BLOCK])
def test_any_order_of_arrival_gives_the_same_bits_in_float32_blocks(rng: np.random.Generator, dim: int) -> None:
    rows = rng.standard_normal((3, dim)).astype(np.float32)
    grams = [filled(rows, order).gram(range(3)) for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0])]
    assert all(np.array_equal(one, other) for one, other in pairwise(grams))


@settings(max_examples=8, deadline=None)
@given(order=st.permutations(range(21)), absent=st.integers(0, 2), seed=st.integers(0, 99))
def test_any_order_of_many_rows_gives_the_same_bits(order: list[int], absent: int, seed: int) -> None:
    """More rows than are multiplied together, some of which never come, one spoilt, one cut to another length."""
    rows = np.random.default_rng(seed).standard_normal((21, SMALL // 21 + BLOCK + 7)).astype(np.float32)
    there = list(range(21 - absent))
    exact = rows[there].astype(np.float64) @ rows[there].astype(np.float64).T
    found = []
    for arriving in (there, [slot for slot in order if slot in there]):
        held = filled(rows, arriving, capacity=21)
        held.drop(3)
        held.scale(5, 0.25)
        found.append((held.gram(range(21)), held.combine(np.linspace(-1, 1, 21)).numpy()))
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))
    kept = [slot for slot in there if slot not in (3, 5)]
    assert relative(found[0][0][np.ix_(kept, kept)], exact[np.ix_(kept, kept)]) < 1e-6


@st.composite
def turns_of_rows(draw: st.DrawFn) -> list[list[int]]:
    """Some of a few rows, in the groups in which their products are asked for; rising in each."""
    count = draw(st.integers(1, 24))
    order = draw(st.permutations(range(count)))
    cuts = sorted(draw(st.sets(st.integers(0, count), max_size=6)))
    return [sorted(order[start:stop]) for start, stop in pairwise([0, *cuts]) if start < stop] or [[0]]


@settings(max_examples=40, deadline=None)
@given(turns=turns_of_rows(), spare=st.integers(0, 5), dim=st.sampled_from([1, 7, PAIR_BLOCK + 1, STRIP + 5]))
def test_a_product_depends_on_its_two_rows_alone(turns: list[list[int]], spare: int, dim: int) -> None:
    """Not on which rows are multiplied together, on the place of a row, nor on what lies in slots beside them."""
    products_depend_on_two_rows_alone(turns, spare, dim)


@settings(max_examples=10, deadline=None)
@given(turns=turns_of_rows(), spare=st.integers(0, 5), dim=st.sampled_from([FEW_COLUMNS, PAIR_BLOCK + 1]))
def test_so_it_does_where_blas_treats_rows_of_a_tile_differently(turns: list[list[int]], spare: int, dim: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps, "alike", lambda width: False)
        patch.setattr(sweeps, "_multiply_tiles", lambda *_: pytest.fail("left to BLAS"))
        products_depend_on_two_rows_alone(turns, spare, dim)


def products_depend_on_two_rows_alone(turns: list[list[int]], spare: int, dim: int) -> None:
    there = sorted(slot for turn in turns for slot in turn)
    held = HostRows(there[-1] + 1 + spare, dim, np.dtype(np.float32))
    values = np.random.default_rng(dim).standard_normal(held.shape).astype(np.float32)
    for slot in range(held.shape[0]):
        held.put(slot, values[slot] if slot in there else np.full(dim, np.nan))
    found, done = np.zeros((held.shape[0], held.shape[0])), list[int]()
    for turn in turns:
        found[turn] = held.products(turn, sorted(done))
        found[:, turn] = found[turn].T
        done += turn
    alone = HostRows(2, dim, held.dtype)
    for one in there:
        for other in there:
            alone.put(0, values[one])
            alone.put(1, values[other])
            assert found[one, other] == alone.products([0, 1], [])[0, 1]
    assert not found[[slot for slot in range(held.shape[0]) if slot not in there]].any()
    exact = values[there].astype(np.float64) @ values[there].astype(np.float64).T
    assert relative(found[np.ix_(there, there)], exact) < 1e-6


def test_whether_blas_treats_rows_alike_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_itself(left: FloatArray, right: FloatArray) -> FloatArray:
        return np.asarray((left * right[..., None, :]).sum(axis=-1))

    def by_place(left: FloatArray, right: FloatArray) -> FloatArray:
        found = by_itself(left, right)
        return np.asarray(found + found * 1e-6 * (np.arange(found.shape[-1]) > TILE))

    for product, answer in ((by_itself, True), (by_place, False)):
        monkeypatch.setattr(np, "matvec", product)
        assert sweeps.alike.__wrapped__(FEW_COLUMNS) is answer


@pytest.mark.parametrize("count", [3, 10, 40])
def test_the_last_reply_owes_the_products_of_one_row(
    count: int, form: RowMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form is ON_DEVICE:
        pytest.skip("a device makes all products at once")
    rows = np.ones((count, SMALL // count + 1), np.float32)
    held = filled(rows[:-1], capacity=count)
    owed: list[int] = []
    made = HostRows.products

    def noted(rows: HostRows, due: list[int], known: list[int]) -> Float64Array:
        owed.append(len(due))
        return made(rows, due, known)

    monkeypatch.setattr(HostRows, "products", noted)
    held.put(count - 1, rows[-1])
    held.gram(range(count))
    held.combine(np.ones(count))
    assert owed == [1]


def test_rows_of_references_are_multiplied_when_they_are_asked_for(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rng.standard_normal((4, WIDE)).astype(np.float32)
    held = RowSet(4, WIDE, references=2)
    for slot in (0, 1):
        held.put(slot, rows[slot])
    with monkeypatch.context() as patch:
        for kind in (HostRows, DeviceRows):
            patch.setattr(kind, "products", lambda *_: pytest.fail("a reference was multiplied"))
        for slot in (2, 3):
            held.put(slot, rows[slot])
    assert np.array_equal(held.gram(range(4)), filled(rows).gram(range(4)))


def test_small_and_large_arrays_meet_at_the_boundary() -> None:
    assert RowSet(2, SMALL // 2 - 1).exact
    assert not RowSet(2, SMALL // 2).exact


def test_slots_may_stay_empty_and_be_dropped(rng: np.random.Generator) -> None:
    rows = random_set(rng, 6, 40)
    held = filled(rows, [5, 0, 3])
    assert held.filled == (0, 3, 5)
    kept = rows[[0, 5]]
    held.drop(3)
    np.testing.assert_allclose(held.gram(held.filled), kept @ kept.T, rtol=1e-13)
    assert not held.gram(range(6))[3].any()
    weights = np.array([2.0, 0, 0, 0, 0, -1.0])
    np.testing.assert_allclose(held.combine(weights).numpy(), 2 * rows[0] - rows[5], rtol=1e-13)


def test_a_row_put_again_replaces_the_one_before(rng: np.random.Generator) -> None:
    rows = random_set(rng, 3, 10)
    held = filled(rows)
    held.put(1, torch.from_numpy(-rows[1]))
    rows[1] *= -1
    np.testing.assert_allclose(held.gram(range(3)), rows @ rows.T, rtol=1e-13)


def test_a_cleared_row_set_serves_the_next_round(rng: np.random.Generator) -> None:
    held = filled(rng.standard_normal((3, WIDE)).astype(np.float32))
    held.refine()
    held.clear()
    assert held.filled == ()
    assert not held.exact
    assert not held.gram(range(3)).any()


def test_refining_gives_the_float64_products_of_float32_rows(rng: np.random.Generator) -> None:
    rows = conflicting_set(rng, 3, 60, common=1e-3) @ rng.standard_normal((60, WIDE))
    rows32 = rows.astype(np.float32)
    exact = rows32.astype(np.float64) @ rows32.astype(np.float64).T
    held = filled(rows32, capacity=4)
    before = relative(held.gram(range(3)), exact)
    assert held.refine()
    assert held.exact
    assert not held.refine()
    assert relative(held.gram(range(3)), exact) < 1e-14 < before
    held.put(3, rows32[0])  # what comes after is as precise
    assert relative(held.gram([0, 3]), exact[np.ix_([0, 0], [0, 0])]) < 1e-14


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [5, WIDE])
def test_a_weighted_sum_has_the_precision_of_its_rows(rng: np.random.Generator, dtype: str, dim: int) -> None:
    rows = rng.standard_normal((3, dim)).astype(dtype)
    weights = rng.standard_normal(3)
    exact = weights @ rows.astype(np.float64)
    found = filled(rows).combine(weights)
    assert found.dtype == DTYPES[dtype]
    error = np.linalg.norm(found.numpy() - exact) / np.linalg.norm(exact)
    assert error < (1e-15 if dtype == "float64" else 3e-7)


def test_a_sum_that_cancels_is_formed_in_float64(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((3, WIDE)).astype(np.float32)
    rows[1] = rows[0] * np.float32(1 + 2.0**-12)
    weights = np.array([1.0, -1.0, 0.0])
    exact = weights @ rows.astype(np.float64)
    found = filled(rows).combine(weights).numpy()
    # Products in float32 would be off by 2^-24 of the rows, 2^-12 of this difference.
    assert np.linalg.norm(found - exact) / np.linalg.norm(exact) < 1e-7


@pytest.mark.parametrize(
    ("capacity", "dim", "dtype"), [(0, 3, torch.float32), (2, 0, torch.float32), (2, 3, torch.half)]
)
def test_a_row_set_without_room_is_refused(capacity: int, dim: int, dtype: torch.dtype) -> None:
    with pytest.raises(ShapeError, match="positive sizes"):
        RowSet(capacity, dim, dtype)


@pytest.mark.parametrize("slot", [-1, 2])
def test_a_slot_that_is_not_there_is_refused(slot: int) -> None:
    with pytest.raises(ShapeError, match=f"slot {slot}; there are slots 0 to 1"):
        RowSet(2, 3).put(slot, np.ones(3))


@pytest.mark.parametrize("shape", [(1,), (4,), (1, 3), (3, 1), ()])
def test_a_row_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    held = RowSet(2, 3)
    with pytest.raises(ShapeError, match=r"these are rows of \(3,\)"):
        held.put(0, np.ones(shape))
    assert held.filled == ()


@pytest.mark.parametrize("dim", [4, WIDE])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_a_row_that_is_not_finite_shows_in_its_own_product_and_leaves_no_trace(
    rng: np.random.Generator, bad: float, dim: int
) -> None:
    rows = rng.standard_normal((3, dim)).astype(np.float32)
    clean = filled(rows, [0, 2]).gram(range(3))
    held = filled(rows, [0])
    spoilt = rows[1].astype(np.float64)
    spoilt[-1] = bad
    held.put(1, spoilt)
    assert not np.isfinite(held.gram([1])).any()
    held.drop(1)
    held.put(2, rows[2])
    assert np.array_equal(held.gram(range(3)), clean)
    assert held.combine(np.array([1.0, 0.0, 1.0])).isfinite().all()


def test_values_that_are_not_finite_do_not_outlive_their_round() -> None:
    held = RowSet(3, 4)
    held.put(0, np.ones(4, np.float32))
    held.put(2, np.full(4, np.inf, np.float32))
    held.clear()
    held.put(0, np.ones(4, np.float32))
    assert held.combine(np.array([0.5, 0.0, 0.0])).tolist() == [0.5] * 4


@pytest.mark.parametrize("memory", [IN_MEMORY, RowMemory(0), ON_DEVICE], ids=["host", "spilled", "device"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_read_scaled_and_kept_alike_in_every_form(
    rng: np.random.Generator, dtype: str, memory: RowMemory
) -> None:
    rows = rng.standard_normal((3, 9)).astype(dtype)
    held = RowSet(3, 9, DTYPES[dtype], memory=memory)
    for slot, row in enumerate(rows):
        held.put(slot, row)
    kept = held.copies([2, 0])
    held.scale(2, 0.5)
    assert np.array_equal(kept, rows[[2, 0]])
    assert np.array_equal(held.copies([2])[0], rows[2] * 0.5)
    assert np.array_equal(held.columns([1, 0], slice(2, 4)), rows[[1, 0], 2:4])
    made = held.assemble([(slice(0, 2), np.array([1.0, 2.0])), (slice(8, 9), np.array([3.0]))])
    assert made.tolist() == [1, 2, 0, 0, 0, 0, 0, 0, 3]
    assert made.dtype is DTYPES[dtype]
    further = held.alike(2, references=1)
    further.put(1, made)
    assert (further.dim, further.products, type(further._rows)) == (9, False, type(held._rows))


@pytest.mark.parametrize("bad", [np.nan, np.inf, LONGEST_ROW * 1.01])
def test_a_row_from_elsewhere_is_admitted_if_sums_of_it_are_numbers(bad: float) -> None:
    held = RowSet(2, 3)
    assert held.admit(0, np.array([LONGEST_ROW * 0.5, 0.0, 0.0]))
    assert not held.admit(1, np.array([0.0, bad, 0.0]))
    assert held.filled == (0,)
    assert held.copies([1])[0].tolist() == [0.0, 0.0, 0.0]


def test_rows_are_cut_to_a_multiple_of_the_median_of_those_that_move() -> None:
    held = filled(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [30.0, 40.0]]))
    assert held.cut_long({7: 0, 4: 1, 5: 2, 6: 3}, 5.0) == {6: 0.2}
    assert held.gram([3]) == pytest.approx(np.array([[100.0]]))
    assert filled(np.zeros((2, 3))).cut_long({0: 0, 1: 1}, 1.0) == {}


@pytest.mark.parametrize("products", [True, False])
def test_what_is_said_of_a_sum_is_made_of_products_only_where_these_are_read(
    rng: np.random.Generator, products: bool
) -> None:
    rows = random_set(rng, 4, 30)
    held = RowSet(5, 30, torch.float64, products=products)
    for slot, row in enumerate(rows):
        held.put(slot, row)
    weights = np.array([0.5, 0.0, -1.0, 2.0, 0.0])
    step = weights[:4] @ rows
    square, slopes = held.along(weights, held.combine(weights), (3, 0))
    assert square == pytest.approx(step @ step)
    assert slopes == pytest.approx(rows[[3, 0]] @ step if products else np.zeros(2))
    found = held.read_products((0, 2))
    assert found == pytest.approx(rows[[0, 2]] @ rows[[0, 2]].T * (1 if products else np.eye(2)))
    assert held.refine() is False  # small arrays are exact from the start


@pytest.mark.parametrize("spilled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_with_any_vector_are_those_in_float64(
    rng: np.random.Generator, spilled: bool, dtype: torch.dtype
) -> None:
    rows, dim = rng.standard_normal((3, 70_001)), 70_001
    held = RowSet(5, dim, dtype, memory=RowMemory(0 if spilled else None))
    for slot, row in zip((4, 0, 2), rows, strict=True):
        held.put(slot, torch.from_numpy(row).to(dtype))
    vector = torch.from_numpy(rng.standard_normal(dim)).to(dtype)
    square, slopes = held.against(vector, (4, 0, 2))
    stored = np.stack([torch.from_numpy(row).to(dtype).numpy() for row in rows]).astype(np.float64)
    np.testing.assert_allclose(slopes, stored @ vector.numpy().astype(np.float64), rtol=1e-12)
    assert square == pytest.approx(float(vector.double() @ vector.double()), rel=1e-6)
    assert RowSet(5, dim, dtype, products=False).against(vector, (1, 2))[1].tolist() == [0, 0]
