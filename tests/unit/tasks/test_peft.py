"""Adapters of `peft` in a model of `transformers`: they alone travel, and the export is whole again."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_model

from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.shared_models import Frozen
from dqnfed_flwr.engine.export import ADAPTER, CARD, PEFT, WEIGHTS, export_run, trained_module
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.params import ParamSpec
from tests.helpers import fine_tuning
from tests.helpers.markdown import blocks

ROOT = Path(__file__).parents[3]

SETTINGS: dict[str, Any] = {
    "task": "tests.helpers.fine_tuning:Tuned",
    "clients": 3,
    "rounds": 3,
    "local.lr": 1.0,
    "local.threads": 1,
}
DIM = 2 * 2 * (16 + 48)
"""Two layers with a pair of matrices of rank 2 for 16 inputs and 48 outputs each."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, Path]:
    fine_tuning.need_peft()
    folder = tmp_path_factory.mktemp("run")
    return run({**SETTINGS, "output": str(folder)}), folder


@pytest.fixture(scope="module")
def exported(trained: tuple[RunResult, Path]) -> list[Path]:
    return export_run(trained[1], trained[1] / "model")


def logits(module: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = module(torch.arange(16).reshape(2, 8) % fine_tuning.VOCABULARY)
    return found


def test_only_adapters_travel_and_every_client_improves(trained: tuple[RunResult, Path]) -> None:
    result, folder = trained
    assert result.theta.shape == (result.form.dim,) == (DIM,)
    assert [event.improved_ratio for event in result.events] == [1.0] * 3
    assert np.mean(result.events[-1].losses_after) < np.mean(result.events[0].losses_before)
    assert (folder / "model.npz").stat().st_size < 4 * DIM + 2000


def test_local_passes_train_adapters_too(trained: tuple[RunResult, Path]) -> None:
    result = run({**SETTINGS, "method": "fedavg", "local.batch-size": 8})
    assert result.theta.shape == (DIM,)
    assert np.mean(result.events[-1].losses_after) < np.mean(result.events[0].losses_before)


def test_the_export_is_a_whole_model_of_transformers(trained: tuple[RunResult, Path], exported: list[Path]) -> None:
    result, _ = trained
    assert [path.name for path in exported] == [WEIGHTS, ADAPTER, "inner", CARD]
    wanted = logits(trained_module(result))
    plain = fine_tuning.Logits(fine_tuning.base()).eval()
    assert not torch.allclose(logits(plain), wanted, atol=1e-4)
    load_model(plain, exported[0])
    torch.testing.assert_close(logits(plain.eval()), wanted, rtol=1e-5, atol=1e-5)
    assert f"{DIM:,} values were trained" in exported[-1].read_text()


def test_peft_reads_its_own_adapter(trained: tuple[RunResult, Path], exported: list[Path]) -> None:
    from peft import PeftModel

    result, folder = trained
    again = PeftModel.from_pretrained(fine_tuning.base(), str(folder / "model" / PEFT / "inner"))
    assert torch.equal(logits(fine_tuning.Logits(again).eval()), logits(trained_module(result)))


def test_a_run_begins_with_the_adapter_of_another(trained: tuple[RunResult, Path], exported: list[Path]) -> None:
    result, _ = trained
    following = run({**SETTINGS, "rounds": 1, "start.model": str(exported[1])})
    assert following.events[0].losses_before == result.events[-1].losses_after


def test_a_model_of_peft_without_a_trainable_parameter_is_refused() -> None:
    fine_tuning.need_peft()
    said = r"Logits has no trainable parameter; it is a peft model: make its adapter with inference_mode=False"
    with pytest.raises(ShapeError, match=said):
        run({**SETTINGS, "task": "tests.helpers.fine_tuning:Untrainable"})


def test_bfloat16_goes_with_adapters(trained: tuple[RunResult, Path]) -> None:
    half = run({**SETTINGS, "local.autocast": "bf16"})
    assert half.theta.dtype == np.float32
    assert not np.array_equal(half.theta, trained[0].theta)
    assert np.mean(half.events[-1].losses_after) < np.mean(half.events[0].losses_before)


def test_the_document_says_it_in_code_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fine_tuning.need_peft()
    import transformers

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda name: fine_tuning.base())
    for block in blocks(ROOT / "docs" / "fine-tuning.md"):
        if block.file_name in ("adapters.py", "stories.py"):
            (tmp_path / block.file_name).write_text(block.text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for client in range(2):
        rows = [torch.cat([tokens, after[-1:]]) for tokens, after in fine_tuning.counted(client, 12)]
        torch.save(torch.stack(rows), f"tokens-{client}.pt")
    result = run({"clients": 2, "rounds": 2, "task": "stories:Stories"})
    assert (result.theta.size, result.figure.name) == (4 * DIM, "accuracy")
    module = import_module("adapters").Logits("name")
    assert ParamSpec.of(module).dim == 4 * DIM
    assert logits(module).shape == (2, 8, fine_tuning.VOCABULARY)


class Attending(torch.nn.Module):
    """An attention, whose adapters of peft merge into it in every pass, and a head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = torch.nn.Linear(8, classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        rows = inputs.flatten(1, 2)
        mixed = self.attention(rows, rows, rows, need_weights=False)[0]
        logits: torch.Tensor = self.head((rows + mixed).mean(1))
        return logits


class Attended(torch.nn.Module):
    """With its adapters."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        from peft import LoraConfig, get_peft_model

        adapters = LoraConfig(target_modules=["attention"], r=2, modules_to_save=["head"])
        self.inner = get_peft_model(Attending(classes), adapters)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.inner(inputs)
        return logits


def attended(input_shape: tuple[int, ...], num_classes: int) -> torch.nn.Module:
    """A model for images of 8 by 8 pixels."""
    return Attended(num_classes)


def test_frozen_weights_that_adapters_merge_into_are_put_back() -> None:
    fine_tuning.need_peft()
    module = attended((1, 8, 8), 10)
    known = Frozen.of(module, torch.device("cpu")).tensors
    model = FlatModel(module, torch.device("cpu"))
    values = {name: tensor.clone() for name, tensor in known.items()}
    inputs = torch.rand(3, 1, 8, 8)
    for _ in range(5):
        module(inputs)
    named = dict(module.named_parameters())
    assert any(named[name].data_ptr() != tensor.data_ptr() for name, tensor in known.items())
    model.place(model.theta)
    named = dict(module.named_parameters())
    assert all(named[name].data_ptr() == tensor.data_ptr() for name, tensor in known.items())
    assert all(torch.equal(tensor, values[name]) for name, tensor in known.items())
    model.check_trained()
