"""Runs of models with unusual parameters: they train as their twins do, and are exported whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dqnfed_flwr.engine.export import CARD, PROGRAM, WEIGHTS, export_run, trained_module
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.errors import RunError
from dqnfed_flwr.params import NOTHING_FROZEN
from tests.helpers.runs import TINY

MODELS = "tests.helpers.odd_models"
SETTINGS: dict[str, Any] = {**TINY, "local.threads": 1}
METHODS: list[dict[str, Any]] = [{"method": "dqn-fed"}, {"method": "fedavg", "local.epochs": 2, "local.momentum": 0.5}]


@pytest.mark.parametrize("more", METHODS, ids=lambda more: str(more["method"]))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_complex_model_trains_as_its_pairs_of_reals(dtype: str, more: dict[str, Any]) -> None:
    settings = {**SETTINGS, **more, "dtype": dtype}
    whole, pairs = (run({**settings, "model": f"{MODELS}:{name}"}) for name in ("spectral", "spectral_pairs"))
    assert whole.theta.size == pairs.theta.size == 2 * 33 + 1 + 64 * 10 + 10
    # the twin's pairs come first too, for they are complex there; its offset and head follow
    assert whole.theta.tobytes() == pairs.theta.tobytes()
    assert whole.theta.dtype == np.dtype(dtype)
    assert [e.losses_after for e in whole.events] == [e.losses_after for e in pairs.events]


def test_a_complex_model_is_exported_whole(tmp_path: Path) -> None:
    result = run({**SETTINGS, "model": f"{MODELS}:spectral", "output": str(tmp_path)})
    names = {path.name for path in export_run(tmp_path, tmp_path / "out")}
    assert names == {WEIGHTS, PROGRAM, CARD}
    weight = load_file(tmp_path / "out" / WEIGHTS)["weight"]
    assert weight.dtype == torch.complex64
    assert torch.view_as_real(weight).reshape(-1).numpy().tobytes() == result.theta[:66].tobytes()
    program = torch.export.load(str(tmp_path / "out" / PROGRAM)).module()
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(program(x), trained_module(result)(x))
    assert f"{result.theta.size:,} parameters" in (tmp_path / "out" / CARD).read_text()
    again = run({**SETTINGS, "model": f"{MODELS}:spectral", "start.model": str(tmp_path / "out" / WEIGHTS)})
    from_run = run({**SETTINGS, "model": f"{MODELS}:spectral", "start.model": str(tmp_path / "model.npz")})
    assert again.theta.tobytes() == from_run.theta.tobytes() != result.theta.tobytes()


def test_what_safetensors_has_no_name_for_is_refused_in_a_line(tmp_path: Path) -> None:
    run({**SETTINGS, "model": f"{MODELS}:spectral", "dtype": "float64", "output": str(tmp_path)})
    with pytest.raises(RunError, match=r"weight is complex128, which safetensors has no name for; train with dtype"):
        export_run(tmp_path, tmp_path / "out")


def test_a_complex_buffer_travels_is_averaged_and_resumed(tmp_path: Path) -> None:
    settings = {**SETTINGS, "model": f"{MODELS}:phases", "method": "fedavg", "local.batch-size": 10, "rounds": 4}
    straight = run({**settings, "output": str(tmp_path / "a")})
    phase = straight.buffers["phase"]
    assert phase.dtype == np.complex64
    assert abs(phase.imag) > 0.001
    run({**settings, "rounds": 2, "output": str(tmp_path / "b")})
    resumed = run({**settings, "output": str(tmp_path / "b")}, resume=True)
    assert resumed.buffers["phase"].tobytes() == phase.tobytes()
    assert resumed.theta.tobytes() == straight.theta.tobytes()
    assert load_file(export_run(tmp_path / "a", tmp_path / "out")[0])["phase"].item() == phase.item()


@pytest.mark.parametrize("more", METHODS, ids=lambda more: str(more["method"]))
def test_weights_of_one_byte_stay_as_they_are(more: dict[str, Any], tmp_path: Path) -> None:
    result = run({**SETTINGS, **more, "model": f"{MODELS}:stored", "output": str(tmp_path)})
    assert result.theta.size == 8 * 10 + 10
    assert result.form.frozen != NOTHING_FROZEN
    assert result.events[-1].losses_after < result.events[0].losses_before
    export_run(tmp_path, tmp_path / "out")
    found = load_file(tmp_path / "out" / WEIGHTS)
    assert (found["0.weight"].dtype, found["2.weight"].dtype) == (torch.int8, torch.float8_e4m3fn)


def test_an_extra_state_is_in_no_file_and_the_card_says_so(tmp_path: Path) -> None:
    run({**SETTINGS, "model": f"{MODELS}:tensor_state", "output": str(tmp_path)})
    export_run(tmp_path, tmp_path / "out")
    assert set(load_file(tmp_path / "out" / WEIGHTS)) == {"weight", "bias"}
    assert (
        "Not in `model.safetensors`, which holds parameters and buffers alone: `_extra_state`."
        in (tmp_path / "out" / CARD).read_text()
    )
    run({**SETTINGS, "model": f"{MODELS}:tensor_state", "start.model": str(tmp_path / "out" / WEIGHTS)})
