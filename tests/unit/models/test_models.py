from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from dqnfed_flwr.errors import ModelError
from dqnfed_flwr.models import MODELS, build_model

IMAGE, TOKENS = (1, 8, 8), (5,)


def shape_for(name: str) -> tuple[int, ...]:
    return TOKENS if name.startswith("char-lstm") else IMAGE


def batch_for(name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if name.startswith("char-lstm"):
        return torch.randint(0, 10, (3, *TOKENS), generator=generator)
    return torch.randn((3, *IMAGE), generator=generator, dtype=dtype)


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, dqnfed_flwr.models; print('torch' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("logistic", (68,), 2, 68 * 2 + 2),
        ("mlp", (3, 32, 32), 10, 3072 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10),
        ("cnn", (1, 28, 28), 62, 6_603_710),  # as LEAF's
        ("resnet18-gn", (3, 32, 32), 10, 11_173_962),
        ("resnet18-gn", (3, 32, 32), 100, 11_220_132),
        ("char-lstm", (80,), 80, 819_920),
        ("char-lstm-small", (80,), 80, 80 * 8 + 4 * 64 * (8 + 64 + 2) + 64 * 80 + 80),
    ],
)
def test_parameter_counts(name: str, shape: tuple[int, ...], classes: int, parameters: int) -> None:
    assert flat(build_model(name, shape, classes, seed=0)).numel() == parameters


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MODELS)
def test_gives_finite_logits_and_gradients(name: str, dtype: torch.dtype) -> None:
    model = build_model(name, shape_for(name), 10, seed=0, dtype=dtype)

    logits = model(batch_for(name, dtype))
    nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2])).backward()  # type: ignore[no-untyped-call]

    assert (logits.shape, logits.dtype) == ((3, 10), dtype)
    for parameter in model.parameters():
        assert parameter.dtype == dtype
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
    assert model.training


@pytest.mark.parametrize("name", MODELS)
def test_samples_do_not_see_each_other(name: str) -> None:
    model, batch = build_model(name, shape_for(name), 10, seed=0, dtype=torch.float64), batch_for(name, torch.float64)

    torch.testing.assert_close(model(batch)[:1], model(batch[:1]))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (2, 4, 7)])
@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn", "resnet18-gn"])
def test_images_of_several_sizes_fit(name: str, shape: tuple[int, ...]) -> None:
    assert build_model(name, shape, 3, seed=0)(torch.zeros(2, *shape)).shape == (2, 3)


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"logistic"}))
def test_initial_values_depend_on_the_seed_alone(name: str) -> None:
    torch.manual_seed(5)
    first = flat(build_model(name, shape_for(name), 10, seed=1))
    torch.manual_seed(6)

    assert torch.equal(first, flat(build_model(name, shape_for(name), 10, seed=1)))
    assert torch.equal(first.double(), flat(build_model(name, shape_for(name), 10, seed=1, dtype=torch.float64)))
    assert not torch.equal(first, flat(build_model(name, shape_for(name), 10, seed=2)))


@pytest.mark.parametrize("name", MODELS)
def test_the_global_random_state_is_left_alone(name: str) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()

    build_model(name, shape_for(name), 10, seed=1)

    assert torch.equal(torch.get_rng_state(), before)


def test_logistic_starts_at_zero() -> None:
    assert not flat(build_model("logistic", (4,), 3, seed=1)).any()


def test_a_residual_block_adds_its_input() -> None:
    from dqnfed_flwr.models.architectures import ResidualBlock

    block, x = ResidualBlock(4, 4, stride=1), torch.rand(2, 4, 3, 3)
    block.second[0].load_state_dict({"weight": torch.zeros(4, 4, 3, 3)})

    torch.testing.assert_close(block(x), x)
    assert ResidualBlock(4, 8, stride=2)(x).shape == (2, 8, 2, 2)


@pytest.mark.parametrize("name", ["char-lstm", "char-lstm-small"])
def test_the_last_token_counts(name: str) -> None:
    model = build_model(name, (3,), 10, seed=0)

    logits = model(torch.tensor([[1, 2, 3], [1, 2, 4], [0, 2, 3]]))

    assert not torch.allclose(logits[0], logits[1])
    assert not torch.allclose(logits[0], logits[2])


def test_a_function_of_the_users_is_called_with_shape_and_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        return nn.Linear(input_shape[0], num_classes)

    module = ModuleType("my_own_models")
    vars(module).update(small=small, wrong=lambda *_: "model")
    monkeypatch.setitem(sys.modules, "my_own_models", module)

    model = build_model("my_own_models:small", (3,), 4, seed=1, dtype=torch.float64)

    assert model(torch.zeros(2, 3, dtype=torch.float64)).shape == (2, 4)
    assert torch.equal(flat(model), flat(build_model("my_own_models:small", (3,), 4, seed=1, dtype=torch.float64)))
    with pytest.raises(ModelError, match=r"returned str; it must return a torch\.nn\.Module"):
        build_model("my_own_models:wrong", (3,), 4, seed=1)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "message"),
    [
        ("transformer", IMAGE, 10, "unknown name 'transformer'; allowed: logistic, mlp, cnn, resnet18-gn, char-lstm"),
        ("no_such_module_here:net", IMAGE, 10, "'no_such_module_here' cannot be imported"),
        ("mlp", IMAGE, 1, "found 1 classes; at least 2 are needed; set num-classes"),
        ("cnn", (784,), 10, r"cnn takes images .* found \(784,\)"),
        ("cnn", (1, 3, 28), 10, "at least 4x4"),
        ("resnet18-gn", (8, 8), 10, r"takes images \(channels, height, width\), found \(8, 8\)"),
        ("char-lstm", IMAGE, 10, r"char-lstm takes token sequences \(length,\), found samples of shape \(1, 8, 8\)"),
        ("char-lstm-small", IMAGE, 10, r"char-lstm-small takes token sequences \(length,\), found"),
    ],
)
def test_models_that_do_not_fit_are_refused(name: str, shape: tuple[int, ...], classes: int, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_model(name, shape, classes, seed=0)


def test_lazy_layers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lazy_model.py").write_text("from torch import nn\ndef make(shape, n): return nn.LazyLinear(n)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelError, match="lazy_model:make has lazy layers"):
        build_model("lazy_model:make", (4,), 3, seed=0)
