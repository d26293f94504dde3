"""Generators of random numbers of the user's own: found from what a loss is made of, set, and given back."""

from __future__ import annotations

import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch.utils.data import DataLoader

Generator = np.random.Generator | np.random.BitGenerator | np.random.RandomState | random.Random | torch.Generator
DEPTH, MOST, WIDEST = 10, 20_000, 100
"""How far the search goes: steps from the loader, objects looked at, entries of one list or dictionary."""
_PLAIN = str | bytes | int | float | complex | torch.Tensor | np.ndarray | types.ModuleType | None
_LIBRARIES = sys.stdlib_module_names | {"torch", "numpy"}
_FUNCTIONS = (
    *(partial, types.FunctionType, types.MethodType, types.BuiltinMethodType),
    *(staticmethod, classmethod, property),
)


class Generators:
    """The generators and loaders that can be reached from `root`, found without calling anything of the user's.

    Looked through are attributes, lists and dictionaries, what functions close over, and what they, or the methods of
    an object's class, name in their module. `begin` has all of them begin a stream that depends only on where they were
    found, so that the same is drawn in every pass; `restore` gives them, and the worker processes that a loader keeps,
    back as they were when this was made.
    """

    def __init__(self, root: Any, seed: int) -> None:
        self._seed = seed
        self._found: list[tuple[str, Generator, Any]] = []
        self._loaders: list[tuple[DataLoader[Any], Any]] = []
        for path, thing in _reachable(root):
            if isinstance(thing, DataLoader):
                self._loaders.append((thing, thing._iterator))
            elif isinstance(thing, Generator) and (state := _state(thing)) is not None:
                self._found.append((path, thing, state))

    def begin(self) -> None:
        """Have the next pass draw what every pass draws."""
        for path, generator, _ in self._found:
            _begin(generator, crc32(path.encode(), self._seed))
        for loader, _ in self._loaders:
            loader._iterator = None  # workers that it keeps go on with the streams that they have

    def restore(self) -> None:
        """Give them back."""
        for _, generator, state in self._found:
            _set_state(generator, state)
        for loader, iterator in self._loaders:
            loader._iterator = iterator


def _reachable(root: Any) -> Iterator[tuple[str, Any]]:
    """Generators and loaders, each once, with the way to it; the nearest first."""
    waiting: deque[tuple[str, Any, int]] = deque([("", root, 0)])
    seen: dict[int, Any] = {}  # held, so that no other object takes the place of one
    while waiting and len(seen) < MOST:
        path, thing, depth = waiting.popleft()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if isinstance(thing, Generator | DataLoader):
            yield path, thing
        if depth < DEPTH and not isinstance(thing, Generator):
            for name, part in _parts(thing):
                if not isinstance(part, _PLAIN) and id(part) not in seen:
                    waiting.append((f"{path}.{name}", part, depth + 1))


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, by name."""
    if isinstance(thing, dict):
        yield from ((str(key)[:60], value) for key, value in islice(dict.items(thing), WIDEST))
    elif isinstance(thing, list | tuple | deque):
        yield from ((str(place), value) for place, value in enumerate(islice(thing, WIDEST)))
    elif isinstance(thing, set | frozenset):
        yield from (("", value) for value in islice(thing, WIDEST))
    if isinstance(thing, type):
        return
    if isinstance(thing, _FUNCTIONS):
        yield from _parts_of_function(thing)
    yield from _attributes(thing)
    yield from _of_class(type(thing))


def _attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    """Of an object, those in slots too; no property is asked."""
    with suppress(AttributeError, TypeError):
        yield from list(object.__getattribute__(thing, "__dict__").items())
    for name, member in _slots(type(thing)):
        try:
            yield name, member.__get__(thing, type(thing))
        except AttributeError:  # a slot that is empty
            continue


def _slots(kind: type) -> tuple[tuple[str, types.MemberDescriptorType], ...]:
    """Slots of the objects of a class; not those of functions, which lead to all that their module has."""
    if issubclass(kind, _FUNCTIONS):
        return ()
    members = [item for each in kind.__mro__ for item in vars(each).items()]
    return tuple((name, member) for name, member in members if isinstance(member, types.MemberDescriptorType))


def _of_class(kind: type) -> list[tuple[str, Any]]:
    """Generators and functions that a class of the user's holds."""
    own = [each for each in kind.__mro__ if not _of_a_library(each)]
    held = [item for each in own for item in vars(each).items()]
    return [(name, value) for name, value in held if isinstance(value, (Generator, *_FUNCTIONS))]


def _of_a_library(thing: Any) -> bool:
    """Whether a module, class or function comes with Python, torch or NumPy: those have no generator of the user's."""
    home = getattr(thing, "__name__" if isinstance(thing, types.ModuleType) else "__module__", "")
    return str(home).partition(".")[0] in _LIBRARIES


def _parts_of_function(function: Any) -> Iterator[tuple[str, Any]]:
    """What a function, a method or a `functools.partial` holds, and what its code names in its module."""
    for name in ("__self__", "__func__", "__wrapped__", "fget", "func", "args", "keywords"):
        if (part := getattr(function, name, None)) is not None:
            yield name, part
    if not isinstance(function, types.FunctionType):
        return
    yield "defaults", function.__defaults__
    yield "kwdefaults", function.__kwdefaults__
    for cell in function.__closure__ or ():
        try:
            yield "cell", cell.cell_contents
        except ValueError:  # not filled yet
            continue
    if _of_a_library(function):
        return
    names = sorted(_names(function.__code__))
    for name in names:
        value = function.__globals__.get(name, sys.modules.get(name))
        if not isinstance(value, type | types.ModuleType):
            yield name, value
        elif not _of_a_library(value):
            held = vars(value)  # of a module or class, what the code names too: `noise.RNG`, `Noise.draw`
            own = {each for each in held if isinstance(value, type) and isinstance(held[each], Generator)}
            yield from ((f"{name}.{each}", held[each]) for each in held if each in names or each in own)


def _names(code: types.CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _state(generator: Generator) -> Any:
    """None where it has none, as the system's."""
    try:
        if isinstance(generator, np.random.Generator):
            return generator.bit_generator.state
        if isinstance(generator, np.random.BitGenerator):
            return generator.state
        if isinstance(generator, random.Random):
            return generator.getstate()
        if isinstance(generator, np.random.RandomState):
            return generator.get_state(legacy=False)
        return generator.get_state()
    except NotImplementedError:
        return None


def _set_state(generator: Generator, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.BitGenerator):
        generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def _begin(generator: Generator, seed: int) -> None:
    if isinstance(generator, np.random.Generator):
        generator = generator.bit_generator
    if isinstance(generator, np.random.BitGenerator):
        fresh: Callable[[int], np.random.BitGenerator] = type(generator)
        generator.state = fresh(seed).state
    elif isinstance(generator, np.random.RandomState):
        kind = type(generator._bit_generator)
        generator.set_state({**kind(seed).state, "has_gauss": 0, "gauss": 0.0})
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    else:
        generator.manual_seed(seed)
