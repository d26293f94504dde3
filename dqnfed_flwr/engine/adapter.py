"""What was trained of a model with a frozen part, in files of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dqnfed_flwr.engine.start import FROZEN
from dqnfed_flwr.errors import RunError
from dqnfed_flwr.params import ParamSpec, frozen_fingerprint
from dqnfed_flwr.strategy.compatibility import Form
from dqnfed_flwr.tasks.adapters import adapted

if TYPE_CHECKING:
    from torch import nn

ADAPTER, PEFT = "adapter.safetensors", "adapter"


def check_frozen(module: nn.Module, form: Form, run: Path) -> None:
    """Refuse a module whose frozen part is not that of the run: `RunError`."""
    if form.frozen and frozen_fingerprint(module) != form.frozen:
        raise RunError(
            f"{run}: the model is built here with other frozen parameters than on the nodes; put the weights that it "
            "was fine-tuned from in their place"
        )


def write_adapter(module: nn.Module, form: Form, target: Path) -> list[Path]:
    """Write what was trained of a module with frozen parameters; the paths, none where all was trained.

    `adapter.safetensors` holds trained parameters and buffers by the module's own names, and the setting `start.model`
    takes it. Models of `peft` are saved to the folder `adapter` too, as `PeftModel.from_pretrained` reads them.
    """
    from safetensors.torch import save_file

    if all(parameter.requires_grad for parameter in module.parameters()):
        return []
    spec = ParamSpec.of(module)
    trained = {**spec.split(spec.flatten(module)), **spec.read_buffers(module)}
    path = target / ADAPTER
    save_file({name: value.clone() for name, value in trained.items()}, path, {"format": "pt", FROZEN: form.frozen})
    folders = []
    for name, part in adapted(module):
        folders.append(target / PEFT / name if name else target / PEFT)
        part.save_pretrained(str(folders[-1]))
    return [path, *folders]
