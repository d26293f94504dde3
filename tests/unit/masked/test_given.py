"""What a node gives once, whatever its processes remember."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest

from dqnfed_flwr.masked.given import LINE, Given
from dqnfed_flwr.masked.member import Member, RefusedError, model_digest
from dqnfed_flwr.masked.secrets import digest
from tests.helpers.masked import group, key_of, request, rows

ABOUT = digest("a sum", 1)


def _say(path: Path, number: int) -> bytes:
    return Given(path).setdefault(ABOUT, digest(number))


def test_what_was_said_first_stands_for_all_processes(tmp_path: Path) -> None:
    path = tmp_path / "new" / "given"
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.starmap(_say, [(path, number) for number in range(40)])
    assert len({*found}) == 1
    assert found[0] in {digest(number) for number in range(40)}
    assert len(path.read_bytes()) == LINE
    assert Given(path).setdefault(digest("another"), found[0]) == found[0]
    assert path.stat().st_mode & 0o777 == 0o600


def test_line_of_a_process_that_was_killed_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "given"
    kept = Given(path)
    kept.setdefault(digest("before"), digest(0))
    with path.open("ab") as file:
        file.write(ABOUT + b"half")
    assert kept.setdefault(ABOUT, digest(1)) == digest(1)
    assert (kept.setdefault(digest("before"), digest(9)), kept.setdefault(ABOUT, digest(9))) == (digest(0), digest(1))


def agreed(path: Path) -> list[Member]:
    """Two processes of a node that has agreed with three others, with the same memory."""
    known = group(4)[0]
    found = [Member(replace(known.identity, given=Given(path))) for _ in range(2)]
    for each in found:
        each.load(known.export())
    return found


def test_processes_with_the_same_memory_give_one_row_one_sum_and_one_product(tmp_path: Path) -> None:
    one, other = agreed(tmp_path / "given")
    row, step = rows(2, 20)
    asked = request(range(4), [0.25] * 4)
    model = asked["model"]
    sketch = one.hide(1, model, row)
    with pytest.raises(RefusedError, match="another row in one exchange"):
        other.hide(1, model_digest(step), row)
    with pytest.raises(RefusedError, match="another row in one exchange"):
        other.hide(1, model, step)
    assert (other.hide(1, model, row) == sketch).all()
    assert one.along(step) == other.along(step)
    with pytest.raises(RefusedError, match="second vector"):
        other.along(row)
    words = one.summand(asked)
    with pytest.raises(RefusedError, match="second sum at one model"):
        other.summand(request(range(4), [0.4, 0.3, 0.2, 0.1]))
    assert (other.summand(asked) == words).all()


def test_node_that_begins_anew_in_a_run_gives_nothing_again(tmp_path: Path) -> None:
    """Its secrets are others, and so would noise and masks be."""
    one, _ = agreed(tmp_path / "given")
    row = rows(1, 20)[0]
    one.hide(1, b"m" * 32, row)
    renewed = group(4, salt="anew")[0]
    late = Member(replace(renewed.identity, given=Given(tmp_path / "given")))
    late.load(renewed.export())
    assert late.root() != one.root()
    with pytest.raises(RefusedError, match="another row in one exchange"):
        late.hide(1, b"m" * 32, row)
    assert key_of(0) == late.identity.private
