"""Fine-tuning for roles, on a few lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_model

from benchmarks import lora
from benchmarks._transformer import CharTransformer, adapted, merged
from dqnfed_flwr import run
from dqnfed_flwr.engine.export import ADAPTER, CARD, WEIGHTS, export_run, trained_module

LINES = "To be, or not to be, that is the question:\nWhether tis nobler in the mind to suffer\n"


@pytest.fixture
def plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Lines of two plays, one of which is in the first stage."""
    texts = {f"hamlet::{n}": LINES[n:] * 5 for n in range(3)} | {"lear::LEAR": LINES * 20}
    (tmp_path / "shakespeare.json").write_text(json.dumps(texts))
    monkeypatch.setenv("DQNFED_DATA", str(tmp_path))
    monkeypatch.setenv(lora.FOLDER, str(tmp_path))
    lora.texts.cache_clear()
    yield tmp_path
    lora.texts.cache_clear()


@pytest.mark.slow
def test_both_stages_run_and_are_told(plays: Path) -> None:
    target = plays / "figures.json"
    few = ["--steps", "3", "--clients", "3", "--rounds", "2", "--set", "local.lr=0.1"]
    lora.main(["--folder", str(plays), *few, "--json", str(target)])
    record = json.loads(target.read_text())
    assert [row["method"] for row in record["runs"]] == ["base", "dqn-fed", "fedavg", "local"]
    assert record["dqn_fed_rho"] == 1
    assert "local_rho" not in record
    assert {row["trained"] for row in record["runs"][1:3]} == {18432}
    assert all(0 < row["worst"] <= row["mean"] for row in record["runs"])


def test_the_export_of_a_plain_adapter_is_the_transformer_again(plays: Path) -> None:
    lora.pretrain(plays / "base.pt", 2)
    shared = {"task": "benchmarks.lora:Roles", "clients": 3, "rounds": 1, "local.threads": 1}
    result = run({**shared, "output": str(plays / "run")})
    files = export_run(plays / "run", plays / "model")
    assert [path.name for path in files] == [WEIGHTS, ADAPTER, CARD]
    plain = lora.base()
    load_model(plain, files[0])
    x = torch.arange(64).unsqueeze(0)
    torch.testing.assert_close(plain.eval()(x), trained_module(result)(x), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(plain(x), lora.pretrained()(x))


def test_an_adapter_changes_nothing_at_first_and_its_merge_nothing_at_all() -> None:
    torch.manual_seed(0)
    model, x = CharTransformer(12, 8, width=16, layers=2, heads=2).eval(), torch.arange(8).unsqueeze(0)
    before = model(x)
    tuned = adapted(model, 2)
    assert torch.equal(tuned(x), before)
    trained = [p for p in tuned.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == 2 * 2 * (16 + 48 + 16 + 16 + 16 + 64 + 64 + 16)
    for parameter in trained:
        torch.nn.init.normal_(parameter, std=0.1)
    wanted = tuned(x)
    torch.testing.assert_close(merged(tuned)(x), wanted)
    assert not torch.allclose(wanted, before)
