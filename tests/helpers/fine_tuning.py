"""A transformer of `transformers` with adapters of `peft`; tests skip where these are not installed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dqnfed_flwr.tasks._base import Datasets
from dqnfed_flwr.tasks.classification import NextTokenLosses

VOCABULARY, LENGTH = 12, 8


def need_peft() -> None:
    """Skip the test without `peft`; a torchvision that does not fit torch is kept from `transformers`."""
    for name in ("peft", "transformers", "safetensors"):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed: the extra lora")
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        for place in ("transformers.utils", "transformers.utils.import_utils"):
            vars(import_module(place))["is_torchvision_available"] = lambda: False


def base() -> Any:
    """The pretrained model: drawn from a seed of its own."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(7)
    sizes = {"n_positions": LENGTH, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **sizes))


def tuned(**more: Any) -> Any:
    """The same with adapters at its attention."""
    from peft import LoraConfig, get_peft_model

    return get_peft_model(base(), LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, **more))


class Logits(nn.Module):
    """A language model as a function from tokens [n, L] to logits [n, L, V]."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.inner(input_ids=tokens, use_cache=False).logits
        return logits


class Tuned(NextTokenLosses):
    """The token that follows; each client counts in steps of its own."""

    def model(self) -> nn.Module:
        return Logits(tuned())

    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        return Datasets(train=counted(partition, 24), test=counted(partition, 6))


class Untrainable(Tuned):
    """Adapters that were loaded to be used."""

    def model(self) -> nn.Module:
        return Logits(tuned(inference_mode=True))


def counted(partition: int, samples: int) -> list[tuple[Tensor, Tensor]]:
    """Tokens that rise by `partition` + 1, round and round, and those that follow them."""
    starts = torch.arange(samples).unsqueeze(1)
    tokens = (starts + (partition + 1) * torch.arange(LENGTH + 1)) % VOCABULARY
    return [(row[:-1], row[1:]) for row in tokens]
