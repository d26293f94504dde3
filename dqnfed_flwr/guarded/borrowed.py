"""The user's model and generators of random numbers, borrowed: handed back exactly as they came, whatever is raised."""

from __future__ import annotations

import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from functools import partial
from itertools import islice
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from dqnfed_flwr.randomness import seeded

SEED = 0
"""Of the stream that batches are drawn from, the same at every model, so that losses can be compared."""
Generator = np.random.Generator | np.random.BitGenerator | np.random.RandomState | random.Random | torch.Generator
DEPTH, MOST, WIDEST = 10, 20_000, 100
"""How far the search goes: steps from the loader, objects looked at, entries of one list or dictionary."""
_PLAIN = str | bytes | int | float | complex | torch.Tensor | np.ndarray | types.ModuleType | None
_LIBRARIES = sys.stdlib_module_names | {"torch", "numpy"}
_FUNCTIONS = (
    *(partial, types.FunctionType, types.MethodType, types.BuiltinMethodType),
    *(staticmethod, classmethod, property),
)


class Modes:
    """The modes that the layers of a model are in, and the dropout of recurrent ones."""

    def __init__(self, model: nn.Module) -> None:
        self._modes = {layer: layer.training for layer in model.modules()}
        self._dropout = {layer: layer.dropout for layer in self._modes if isinstance(layer, nn.RNNBase)}

    def restore(self) -> None:
        """Take the model back to them, by way of `train`: layers that merge their weights in a mode undo it there."""
        for layer, mode in self._modes.items():  # a layer before those in it
            if layer.training != mode:
                layer.train(mode)
        for layer, mode in self._modes.items():
            layer.training = mode
        for recurrent, probability in self._dropout.items():
            recurrent.dropout = probability


@contextmanager
def borrowed(model: nn.Module) -> Iterator[None]:
    """Parameters and buffers, their storages and values, modes, hooks and extra state are afterwards as before."""
    with ExitStack() as stack:  # each is given back, whatever is raised in giving back another
        stack.callback(_unhook, model, set(model._forward_pre_hooks))
        stack.callback(_Values(model).restore)
        for layer in model.modules():
            if _keeps_more(layer):
                stack.callback(layer.set_extra_state, deepcopy(layer.get_extra_state()))
        stack.callback(Modes(model).restore)  # the last is the first to be called
        yield


def _unhook(model: nn.Module, kept: set[int]) -> None:
    """Take off what was hooked to the model's forward passes meanwhile."""
    for key in set(model._forward_pre_hooks).difference(kept):
        model._forward_pre_hooks.pop(key)
        model._forward_pre_hooks_with_kwargs.pop(key, None)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave the generators of torch, NumPy and Python as they were, whatever is drawn within."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None
    try:
        with seeded(SEED, device):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def begin_streams() -> None:
    """Have the generators of torch, NumPy and Python draw as in every other pass."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002


class _Values:
    """What a model's layers hold: which tensors, in which storages, with which values."""

    def __init__(self, model: nn.Module) -> None:
        self._layers = [(layer, dict(layer._parameters), dict(layer._buffers)) for layer in model.modules()]
        tensors: dict[int, Tensor] = {}
        for _, parameters, buffers in self._layers:
            held = [*parameters.values(), *buffers.values()]
            tensors |= {id(tensor): tensor for tensor in held if tensor is not None}
        self._tensors = [(t, t.data, t.detach().clone(), t.requires_grad) for t in tensors.values()]

    def restore(self) -> None:
        """Put them back."""
        with torch.no_grad():
            for tensor, storage, values, trained in self._tensors:
                tensor.data = storage
                if not torch.equal(storage, values):
                    storage.copy_(values)
                if tensor.is_leaf:
                    tensor.requires_grad_(trained)
        for layer, parameters, buffers in self._layers:
            for held, kept in ((layer._parameters, parameters), (layer._buffers, buffers)):
                held.clear()
                held.update(kept)  # type: ignore[arg-type]


def _keeps_more(layer: nn.Module) -> bool:
    """Whether a layer saves more than tensors, and can take it back."""
    kind = type(layer)
    return (
        kind.get_extra_state is not nn.Module.get_extra_state and kind.set_extra_state is not nn.Module.set_extra_state
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
