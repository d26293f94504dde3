"""Which array received is which of a client's model: by name, by order, or by names that say less or more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from dqnfed_flwr.errors import ModelError
from dqnfed_flwr.guarded.arrays import Arrays

NAMED = 4
"""Names of either side that a message gives."""
_MARKS = 100
"""Whole numbers that every type of floating point holds."""
Shapes = Mapping[str, tuple[int, ...]]
Load = Callable[[nn.Module, dict[str, Tensor]], object]
"""Puts arrays into a model."""


def matched(arrays: Arrays, shapes: Shapes, trained: Collection[str]) -> dict[str, str]:
    """The model's names by those of the arrays received, which may be a part of the model.

    The names are the same, or the arrays are all in their order, or one name is the other without some of its parts, as
    `peft` leaves out the name of its adapter and wrappers put theirs in front. Where several of the model's would do,
    it is a trained one, then one with more parts than the array's, then the one with the fewest more. `shapes` are
    those of the model's state, `trained` its names that are trained; `ModelError` if there is no match one to one.
    """
    if arrays.keys() <= shapes.keys():
        return {name: name for name in arrays}
    if len(arrays) == len(shapes) and not arrays.keys() & shapes.keys():
        found = dict(zip(arrays, shapes, strict=True))
        if all(arrays[key].shape == shapes[name] for key, name in found.items()):
            return found
    found = {key: name for key, values in arrays.items() if (name := _nearest(key, values.shape, shapes, trained))}
    if len(found) < len(arrays) or max(Counter(found.values()).values()) > 1:
        left = [key for key in arrays if key not in found or Counter(found.values())[found[key]] > 1]
        raise ModelError(
            f"{len(left)} of the {len(arrays)} arrays received, such as {_some(left)}, are none of the "
            f"{len(shapes)} of the local model, such as {_some(list(shapes))}; build the same model, or say how they "
            "are put into it: LocalTask(..., load=set_peft_model_state_dict)"
        )
    return found


def _nearest(key: str, shape: tuple[int, ...], shapes: Shapes, trained: Collection[str]) -> str | None:
    """The one name that suits best; None where there is none or a draw."""
    if key in shapes:
        return key
    parts = key.split(".")
    ranks = {
        name: (name not in trained, len(own) < len(parts), abs(len(own) - len(parts)))
        for name, have in shapes.items()
        if have == shape and (own := name.split("."))[-1] == parts[-1] and (_within(parts, own) or _within(own, parts))
    }
    best = [name for name, rank in ranks.items() if rank == min(ranks.values())]
    return best[0] if len(best) == 1 else None


def _within(few: Sequence[str], many: Sequence[str]) -> bool:
    """Whether `few` is `many` without some of its parts."""
    left = iter(many)
    return all(part in left for part in few)


def matched_by_loading(arrays: Arrays, load: Load, model: nn.Module, trained: Mapping[str, Tensor]) -> dict[str, str]:
    """As `matched`, for the trained parameters alone: `load` shows where it puts arrays that are marked.

    The model's values are others afterwards. `ModelError` if it changes a trained parameter by no array, or by several.
    """
    before = {name: tensor.detach().clone() for name, tensor in trained.items()}
    numbers = {name: [0] * len(_digits(len(arrays))) for name in trained}
    for place, base in enumerate(_digits(len(arrays))):
        marked = {
            key: torch.full_like(torch.tensor(values), 1 + number // base % _MARKS)
            for number, (key, values) in enumerate(arrays.items())
        }
        load(model, marked)
        for name, tensor in trained.items():
            first = tensor.detach().reshape(-1)[:1]
            numbers[name][place] = int(first.item()) if first.numel() and bool((tensor == first).all()) else 0
    touched = [name for name, tensor in trained.items() if not torch.equal(tensor.detach(), before[name])]
    found, keys = dict[str, str](), list(arrays)
    for name in touched:
        number = sum((mark - 1) * base for mark, base in zip(numbers[name], _digits(len(arrays)), strict=True))
        if 0 not in numbers[name] and 0 <= number < len(keys) and arrays[keys[number]].size == trained[name].numel():
            found[keys[number]] = name
    if len(found) < len(touched):
        left = sorted(set(touched) - set(found.values()))
        raise ModelError(
            f"load makes {_some(left)} of no single array received; have each trained parameter travel whole"
        )
    return found


def _digits(count: int) -> list[int]:
    """What the places of a number below `count` are worth."""
    found = [1]
    while found[-1] * _MARKS < count:
        found.append(found[-1] * _MARKS)
    return found


def _some(names: Sequence[str]) -> str:
    return ", ".join(repr(name[:80]) for name in names[:NAMED])
