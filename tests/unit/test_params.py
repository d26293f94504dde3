"""Flattening and unflattening: every trainable value once, every bit kept, buffers apart."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.models import MODELS, build_model
from dqnfed_flwr.params import NOTHING_FROZEN, ParamSpec, count_reals, frozen_fingerprint, left_behind, line_point
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


class Complex(nn.Module):
    """A complex parameter behind real ones of odd size, one without values, and a complex buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(2.0))
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.spectrum = nn.Parameter(torch.tensor([[1 + 2j, 3 + 4j, 5 + 6j]]))
        self.register_buffer("phase", torch.tensor(1j))
        self.register_buffer("scratch", None)


def test_complex_parameters_are_pairs_of_reals_and_come_first() -> None:
    module = Complex()
    spec = ParamSpec.of(module)
    assert spec.names == ("spectrum", "gain", "empty")
    assert spec.pairs == frozenset({"spectrum"})
    assert (spec.sizes, spec.dim, spec.buffers) == ((6, 1, 0), 7, ("phase",))
    assert spec.flatten(module).tolist() == [1, 2, 3, 4, 5, 6, 2]
    assert [(layer.start, layer.stop) for layer in spec.layers] == [(0, 7)]
    assert spec.head.shape == (0, 0)
    vector = torch.arange(8.0)[1:]  # begins at an odd place, where no complex number can
    assert spec.split(vector)["spectrum"].tolist() == [[1 + 2j, 3 + 4j, 5 + 6j]]
    spec.unflatten(vector.flip(0), module)
    assert module.spectrum.tolist() == [[7 + 6j, 5 + 4j, 3 + 2j]]
    assert module.gain.item() == 1
    assert count_reals(module) == 7


def test_a_complex_buffer_keeps_its_imaginary_part() -> None:
    module = Complex()
    spec = ParamSpec.of(module)
    spec.write_buffers({"phase": torch.tensor(0.6 + 0.8j)}, module)
    assert spec.read_buffers(module)["phase"].item() == pytest.approx(0.6 + 0.8j)
    with pytest.raises(ShapeError, match=r"buffer 'seen' is torch\.complex64; need real values"):
        ParamSpec.of(Tied()).write_buffers({"seen": torch.tensor(1j)}, Tied())


class Staying(nn.Linear):
    """Entries of `state_dict` that no message carries."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.register_buffer("graph", torch.eye(2).to_sparse())
        self.register_buffer("stored", torch.ones(2, dtype=torch.float8_e5m2))
        self.register_buffer("mean", torch.ones(2))
        self.state = 1

    def get_extra_state(self) -> dict[str, int]:
        return {"n": self.state}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.state = state["n"]


def test_what_no_message_carries_stays_and_has_a_name() -> None:
    module = Staying()
    spec = ParamSpec.of(module)
    assert spec.buffers == ("mean",)
    assert left_behind(module) == ("graph", "stored", "_extra_state")
    before = frozen_fingerprint(module)
    module.state = 2  # may follow from what is trained
    assert frozen_fingerprint(module) == before != NOTHING_FROZEN
    module.get_buffer("graph").mul_(2)
    assert frozen_fingerprint(module) != before


def test_packed_weights_of_a_quantised_layer_are_part_of_the_fingerprint() -> None:
    quantise: Any = torch.ao.quantization.quantize_dynamic
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [
            quantise(nn.Sequential(layer), {nn.Linear}, dtype=torch.qint8)
            for layer in (nn.Linear(3, 2), nn.Linear(3, 2))
        ]
    one, other = (frozen_fingerprint(module) for module in found)
    assert len({one, other, NOTHING_FROZEN}) == 3
    assert frozen_fingerprint(found[0]) == one
    assert "0._packed_params._packed_params" in left_behind(found[0])


def test_a_model_of_parameters_without_values_has_none_to_train() -> None:
    module = nn.Module()
    module.register_parameter("none", nn.Parameter(torch.empty(0)))
    with pytest.raises(ShapeError, match="has no trainable parameter"):
        ParamSpec.of(module)
