"""What a user's module is made into before it is trained: no value lost in silence, and a line where it cannot be."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from dqnfed_flwr.errors import ModelError
from dqnfed_flwr.models.making import as_dtype, check_parameters, other_dtypes, own_copy


class Kinds(nn.Module):
    """A tensor of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.real = nn.Parameter(torch.ones(2, dtype=torch.float16))
        self.pair = nn.Parameter(torch.tensor([1 + 2j]))
        self.base = nn.Parameter(torch.ones(2, dtype=torch.bfloat16), requires_grad=False)
        self.bytes = nn.Parameter(torch.ones(2, dtype=torch.float8_e4m3fn), requires_grad=False)
        self.code = nn.Parameter(torch.ones(2, dtype=torch.int8), requires_grad=False)
        self.register_buffer("phase", torch.tensor(1 - 1j, dtype=torch.complex128))
        self.register_buffer("count", torch.tensor(2**53 + 1))
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("wide", torch.ones(1, dtype=torch.float64).expand(3))
        self.register_buffer("none", None)


@pytest.mark.parametrize(("dtype", "pairs"), [(torch.float32, torch.complex64), (torch.float64, torch.complex128)])
def test_floats_are_cast_to_the_width_of_the_run_and_nothing_else_is(dtype: torch.dtype, pairs: torch.dtype) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch's own word on imaginary parts that it drops
        module = as_dtype(Kinds(), dtype)
    found = {name: tensor.dtype for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    assert found == {
        "real": dtype,
        "pair": pairs,
        "base": dtype,
        "bytes": torch.float8_e4m3fn,
        "code": torch.int8,
        "phase": pairs,
        "count": torch.int64,
        "flag": torch.bool,
        "wide": dtype,
    }
    assert module.get_parameter("pair").tolist() == [1 + 2j]
    assert module.get_buffer("phase").item() == 1 - 1j
    assert module.get_buffer("count").item() == 2**53 + 1
    module.get_buffer("wide")[0] = 5  # each value has its own place now
    assert module.get_buffer("wide").tolist() == [5, 1, 1]


def test_no_dtype_leaves_all_as_it_was_made() -> None:
    module = Kinds()
    before = {name: tensor.dtype for name, tensor in module.named_parameters()}
    assert {name: tensor.dtype for name, tensor in as_dtype(module, None).named_parameters()} == before


def test_casts_are_counted_by_the_dtype_that_was_found() -> None:
    expected = {"float16": 1, "bfloat16": 1, "complex128": 1, "float64": 1}
    assert other_dtypes(Kinds(), torch.float32) == expected
    assert other_dtypes(Kinds(), torch.float64) == {"float16": 1, "bfloat16": 1}
    assert other_dtypes(nn.Linear(2, 2), torch.float64) == {}


def tied(*, frozen: bool, buffer: bool = False) -> nn.Module:
    module = nn.Module()
    module.one = nn.Parameter(torch.ones(3))
    if buffer:
        module.register_buffer("other", module.one.data)
    else:
        module.other = nn.Parameter(module.one.data, requires_grad=not frozen)
    return module


def sparse() -> nn.Module:
    module = nn.Module()
    module.one = nn.Parameter(torch.eye(2).to_sparse())
    return module


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.LazyLinear(3), "mine has lazy layers, whose shapes are not known; give them their sizes"),
        (nn.Linear(2, 2, device="meta"), r"mine has 2 tensors on the meta device, which hold no values \(weight\)"),
        (sparse(), "mine trains one, which is sparse; make it dense"),
        (tied(frozen=True), "mine has one and other as two tensors in one memory"),
        (tied(frozen=False), "mine has one and other as two tensors in one memory"),
        (tied(frozen=False, buffer=True), "mine has one and other as two tensors in one memory"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_a_line(module: nn.Module, words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        check_parameters(module, "mine")
    assert "\n" not in str(caught.value)


def test_one_parameter_under_two_names_and_empty_ones_are_taken() -> None:
    module = nn.Module()
    module.one = module.two = nn.Parameter(torch.ones(3))
    module.none, module.nothing = nn.Parameter(torch.empty(0)), nn.Parameter(torch.empty(0, 2))
    check_parameters(module, "mine")
    check_parameters(nn.LSTM(2, 3, num_layers=2), "mine")


def weight_normed(layer: nn.Linear) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer)


def pruned(layer: nn.Linear) -> nn.Module:
    cut: Any = prune.l1_unstructured
    cut(layer, "weight", 0.5)
    return layer


@pytest.mark.parametrize("change", [weight_normed, pruned])
def test_layers_that_keep_what_they_computed_are_copied(change: Callable[[nn.Linear], nn.Module]) -> None:
    module = nn.Sequential(change(nn.Linear(4, 3)))
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(module)
    inputs = torch.randn(2, 4)
    before: Tensor = module(inputs)
    other = own_copy(module)
    assert torch.equal(other(inputs), before)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other(inputs).sum().backward()
    assert torch.equal(module(inputs), before)


def test_a_copy_shares_what_it_is_told_to() -> None:
    module = nn.Linear(2, 2)
    other = own_copy(module, [module.weight])
    assert other.weight is module.weight
    assert other.bias is not module.bias
