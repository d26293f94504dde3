"""A finished run's model in forms that need no dqnfed-flwr to be read, with a card that says where it comes from."""

from __future__ import annotations

import shutil
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from dqnfed_flwr.engine.card import card_of
from dqnfed_flwr.engine.result import RunResult, read_result
from dqnfed_flwr.errors import RunError
from dqnfed_flwr.models import build_model
from dqnfed_flwr.params import ParamSpec
from dqnfed_flwr.strategy.preflight import Form

if TYPE_CHECKING:
    from torch import Tensor, nn

WEIGHTS, PROGRAM, CARD = "model.safetensors", "model.pt2", "MODEL_CARD.md"


def export_run(run: Path, target: Path) -> list[Path]:
    """Write `model.safetensors`, `model.pt2` and `MODEL_CARD.md`.

    Parameters
    ----------
    run : Path
        Output directory of a finished run.
    target : Path
        Where they go; made if it is not there.

    Returns
    -------
    list[Path]
        What was written.

    Raises
    ------
    RunError
        If the run is not finished, was written before its form was recorded, or something is missing or cannot be
        written.
    """
    if find_spec("safetensors") is None:
        raise RunError("model.safetensors needs the package safetensors; install dqnfed-flwr[export]")
    result = read_result(run)
    if result.form is None:
        raise RunError(
            f"{run}: its run.json does not say what form its data had; it is of an older version. Run it anew"
        )
    module = trained_module(result, result.form)
    program = _program(module, result.form)
    paths = [target / name for name in (WEIGHTS, PROGRAM, CARD)]
    try:
        target.mkdir(parents=True, exist_ok=True)
        _write_weights(module, result, paths[0])
        torch.export.save(program, paths[1])
        paths[2].write_text(card_of(result, sum(p.numel() for p in module.parameters())), "utf-8")
        shutil.copymode(paths[2], paths[0])  # safetensors lets nobody else read what it writes
    except OSError as error:
        raise RunError(f"{target}: cannot be written ({error.strerror or error}); name another folder") from None
    return paths


def trained_module(result: RunResult, form: Form) -> nn.Module:
    """The run's model, in evaluation mode."""
    dtype = torch.float64 if result.settings.dtype == "float64" else torch.float32
    module = build_model(
        result.settings.model, form.input_shape, form.num_classes, seed=result.settings.seed, dtype=dtype
    )
    spec = ParamSpec.of(module)
    spec.unflatten(torch.from_numpy(np.array(result.theta)), module)
    spec.write_buffers({name: torch.from_numpy(np.array(value)) for name, value in result.buffers.items()}, module)
    return module.eval()


def _write_weights(module: nn.Module, result: RunResult, path: Path) -> None:
    from safetensors.torch import save_model

    about = {"format": "pt", "model": result.settings.model, "method": result.settings.method}
    save_model(module, str(path), metadata=about | {f"version {name}": text for name, text in result.versions.items()})


def _program(module: nn.Module, form: Form) -> torch.export.ExportedProgram:
    """The traced module: a batch of any size [N, *input_shape] to logits [N, num_classes].

    Raises
    ------
    RunError
        If torch cannot trace it.
    """
    batch = ({0: torch.export.Dim("batch")},)
    with warnings.catch_warnings():
        # torch's own LSTM puts its flat weights together anew while it is traced.
        warnings.filterwarnings("ignore", message="The tensor attributes")
        try:
            return torch.export.export(module, (_example(module, form),), dynamic_shapes=batch)
        except Exception as error:  # whatever the tracer makes of layers of the user's own
            first = str(error).strip().partition("\n")[0]
            raise RunError(
                f"{PROGRAM}: torch cannot trace {type(module).__name__} ({type(error).__name__}: {first}); write its "
                "forward without branches on values, or take the weights from model.npz"
            ) from error


def _example(module: nn.Module, form: Form) -> Tensor:
    """Two samples: a batch of one would be taken for a fixed size."""
    tokens = form.input_kind == "tokens"
    dtype = torch.int64 if tokens else next(module.parameters()).dtype
    return torch.zeros((2, *form.input_shape), dtype=dtype)
