"""The benchmark of one card, on the processor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import gpu
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.flower import uses_cuda


@pytest.mark.slow  # a minute
def test_the_whole_of_it_runs_without_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpu.SIZE, "small")  # so that it is put back
    target = tmp_path / "figures.json"
    gpu.main(["--device", "cpu", "--small", "--json", str(target)])
    record = json.loads(target.read_text())
    assert record["same_bits"] == 1
    assert record["lora_parameters"] < record["resnet_parameters"]
    assert (record["tests_failed"], record["rows_5_same_bits"], record["card"]) == (0, 1, "none")
    assert record["server_seconds_3"] > 0
    for name in ("resnet", "resnet_bf16", "resnet_default", "resnet_fedavg_bf16", "lora", "lora_bf16"):
        assert record[f"{name}_over_loop"] == record[f"{name}_seconds"] / record[f"{name}_loop_seconds"] > 0


@pytest.mark.parametrize(("device", "asks"), [("cuda", True), ("cuda:1", True), ("cpu", False), ("mps", False)])
def test_clients_of_flowers_engine_ask_for_a_share_of_the_card(device: str, asks: bool) -> None:
    assert uses_cuda(Settings.from_mapping({"device": device})) is asks
