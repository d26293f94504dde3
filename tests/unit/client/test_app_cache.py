from __future__ import annotations

import threading
from dataclasses import dataclass

from dqnfed_flwr.client.app import Cache


@dataclass(eq=False)
class Load:
    nbytes: int


def built(cache: Cache[int, Load], key: int, size: int = 1) -> bool:
    """Whether the cache had to build the value of `key`."""
    value = Load(size)
    return cache.get(key, lambda: value) is value


def test_values_are_built_once_while_their_bytes_have_room() -> None:
    cache = Cache[int, Load](least=2, room=10)
    assert [built(cache, key) for key in range(10)] == [True] * 10
    assert [built(cache, key) for key in range(10)] == [False] * 10


def test_those_asked_for_longest_ago_go_first() -> None:
    cache = Cache[int, Load](least=2, room=10)
    for key in (0, 1, 2):
        built(cache, key, size=4)  # 12 bytes: the first goes
    assert not built(cache, 1)
    built(cache, 3, size=4)  # now 2 was longest ago
    assert not built(cache, 1)
    assert built(cache, 2)


def test_the_least_number_stays_however_large_they_are() -> None:
    cache = Cache[int, Load](least=2, room=10)
    for key in (0, 1):
        built(cache, key, size=100)
    assert not built(cache, 0)
    assert not built(cache, 1)
    assert built(cache, 2, size=100)
    assert built(cache, 0, size=100)


def test_a_value_that_is_let_go_leaves_its_room() -> None:
    cache = Cache[int, Load](least=0, room=10)
    for key in range(100):
        built(cache, key, size=5)
    assert not built(cache, 98)
    assert not built(cache, 99)
    cache.clear()
    assert built(cache, 99, size=5)
    assert built(cache, 98, size=5)
    assert not built(cache, 99)


def test_a_value_that_grew_counts_with_what_it_holds_by_now() -> None:
    cache, loads = Cache[int, Load](least=0, room=10), [Load(4), Load(4)]
    for key, load in enumerate(loads):
        cache.get(key, [load].pop)
    loads[1].nbytes = 6
    cache.weigh(1)
    assert not built(cache, 0)
    loads[1].nbytes = 7
    cache.weigh(1)
    assert not built(cache, 0)
    assert built(cache, 1)
    cache.weigh(5)  # it is gone


def test_all_who_ask_at_the_same_time_get_the_same_value() -> None:
    cache, both = Cache[int, Load](), threading.Barrier(2)

    def build() -> Load:
        both.wait(timeout=10)  # neither is in the cache yet
        return Load(1)

    found: list[Load] = []
    threads = [threading.Thread(target=lambda: found.append(cache.get(0, build))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert len(found) == 2
    assert found[0] is found[1]
