"""Flattening and unflattening: every trainable value once, every bit kept, buffers apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.models import MODELS, build_model
from dqnfed_flwr.params import NOTHING_FROZEN, ParamSpec, frozen_fingerprint, line_point
from tests.helpers.models import norm_mlp

SHAPES: dict[str, tuple[int, ...]] = {
    "char-lstm": (80,),
    "char-lstm-small": (80,),
    "cnn": (1, 28, 28),
    "resnet18-gn": (3, 32, 32),
}


class Tied(nn.Module):
    """A weight under two names, a frozen one, a scalar, and buffers of which one is not kept."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(3, 2, bias=False)
        self.decode = nn.Linear(3, 2, bias=False)
        self.decode.weight = self.encode.weight
        self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)
        self.gain = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("seen", torch.tensor(3))
        self.register_buffer("scratch", torch.zeros(4), persistent=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MODELS)
def test_a_vector_goes_in_and_out_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    module = build_model(name, SHAPES.get(name, (1, 8, 8)), 10, seed=0, dtype=dtype)
    spec = ParamSpec.of(module)
    assert spec.dim == sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    generator = torch.Generator().manual_seed(1)
    vector = torch.randn(spec.dim, generator=generator, dtype=dtype)
    vector[0] = -0.0
    spec.unflatten(vector, module)
    assert spec.flatten(module).numpy().tobytes() == vector.numpy().tobytes()


def test_the_order_is_that_of_the_parameters() -> None:
    module = norm_mlp((3,), 2)
    flat = ParamSpec.of(module).flatten(module)
    expected = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
    assert torch.equal(flat, expected)


def test_shared_frozen_and_scalar_parameters() -> None:
    module = Tied()
    spec = ParamSpec.of(module)
    assert dict(zip(spec.names, spec.shapes, strict=True)) == {"gain": (), "encode.weight": (2, 3)}
    assert (spec.sizes, spec.dim, spec.buffers) == ((1, 6), 7, ("seen",))
    spec.unflatten(torch.arange(7.0), module)
    assert module.decode.weight.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert module.gain.item() == 0
    assert module.frozen.tolist() == [1] * 5


def test_a_flat_copy_is_not_the_model() -> None:
    module = Tied()
    spec = ParamSpec.of(module)
    spec.flatten(module).zero_()
    assert module.gain.item() == 2
    parts = spec.split(torch.arange(7.0))
    assert parts["encode.weight"].shape == (2, 3)  # views in the shapes of the parameters


def test_buffers_go_in_and_out_in_their_own_dtype() -> None:
    module = norm_mlp((3,), 2)
    spec = ParamSpec.of(module)
    buffers = spec.read_buffers(module)
    assert {name: (tuple(value.shape), value.dtype) for name, value in buffers.items()} == {
        "2.running_mean": ((8,), torch.float32),
        "2.running_var": ((8,), torch.float32),
        "2.num_batches_tracked": ((), torch.int64),
    }
    changed = {name: value + 1 for name, value in buffers.items()}
    spec.write_buffers({name: value.double() for name, value in changed.items()}, module)
    read = spec.read_buffers(module)
    assert all(torch.equal(read[name], changed[name]) and read[name].dtype == changed[name].dtype for name in changed)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda buffers: buffers.pop("2.running_mean"),
        lambda buffers: buffers.update(more=torch.zeros(1)),
        lambda buffers: buffers.update({"2.running_mean": torch.zeros(1)}),  # would broadcast
    ],
)
def test_buffers_of_another_model_are_refused(spoil: Callable[[dict[str, torch.Tensor]], object]) -> None:
    module = norm_mlp((3,), 2)
    spec = ParamSpec.of(module)
    buffers = spec.read_buffers(module)
    spoil(buffers)
    with pytest.raises(ShapeError, match="buffer"):
        spec.write_buffers(buffers, module)


@pytest.mark.parametrize("shape", [(6,), (8,), (7, 1), (1, 7)])
def test_a_vector_of_another_size_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"this model needs \(7,\)"):
        ParamSpec.of(Tied()).unflatten(torch.zeros(shape), Tied())


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(ShapeError, match="model: ReLU has no trainable parameter; set requires_grad"):
        ParamSpec.of(nn.ReLU())


def test_the_fingerprint_is_of_all_that_stays_and_of_nothing_else() -> None:
    assert frozen_fingerprint(norm_mlp((3,), 2)) == NOTHING_FROZEN
    first = frozen_fingerprint(Tied())
    assert len(first) == 64
    trained, frozen, buffer, renamed = (Tied() for _ in range(4))
    with torch.no_grad():
        ParamSpec.of(trained).unflatten(torch.arange(7.0), trained)
        assert frozen_fingerprint(trained) == first
        frozen.frozen[3] = 2
        for name, value in buffer.named_buffers():
            if name not in buffer.state_dict():
                value.add_(1)
        renamed.register_parameter("other", renamed.frozen)
        renamed.register_parameter("frozen", None)
    assert len({first, *map(frozen_fingerprint, (frozen, buffer, renamed))}) == 4
    assert frozen_fingerprint(Tied().to(torch.bfloat16)) not in ("", first)


factors = st.floats(0, 16)


@given(here=factors, there=factors, seed=st.integers(0, 99))
def test_a_point_of_the_line_is_where_its_factor_says(here: float, there: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    theta, step = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    candidate = theta - here * step
    torch.testing.assert_close(line_point(candidate, step, here, there), theta - there * step, rtol=1e-12, atol=1e-12)


def test_the_candidate_itself_is_not_computed_again() -> None:
    theta, step = torch.ones(3), torch.full((3,), float("nan"))
    assert line_point(theta, step, 0.5, 0.5) is theta


def test_a_point_of_the_line_is_a_vector_of_its_own() -> None:
    theta, step = torch.randn(2, 1001, generator=torch.Generator().manual_seed(1))
    before = theta.clone(), step.clone()
    point = line_point(theta, step, 0.7, 0.1)
    assert torch.equal(point, theta + step * (0.7 - 0.1))
    assert torch.equal(theta, before[0])
    assert torch.equal(step, before[1])
