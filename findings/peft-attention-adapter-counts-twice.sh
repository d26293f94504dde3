#!/usr/bin/env bash
# LoRA of peft 0.21.2 on nn.MultiheadAttention adds the update of `out_proj` twice, and differentiates it once: the
# outputs are those of weights W + 2 s B A, and the gradient of `out_proj`'s adapter is half the slope of the loss.
# Exits with 1 if a version behaves otherwise.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "peft==0.21.2" "torch==2.13.0" "transformers==5.24.0" "numpy==2.4.6"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PYTHON'
import sys

import peft
import torch
from peft import LoraConfig, get_peft_model
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


torch.manual_seed(0)
model = get_peft_model(Net(), LoraConfig(target_modules=["attention"], r=2, lora_alpha=8)).double()
scale = 8 / 2
a_in, b_in, a_out, b_out = (
    next(p for n, p in model.named_parameters() if kind in n and ("out_proj" in n) is out)
    for out, kind in ((False, "lora_A"), (False, "lora_B"), (True, "lora_A"), (True, "lora_B"))
)
with torch.no_grad():
    b_in.normal_(std=0.1)
    b_out.normal_(std=0.1)
base = model.base_model.model.attention.base_layer
x = torch.randn(3, 4, 8, dtype=torch.float64)


def by_hand(times):
    plain = nn.MultiheadAttention(8, 2, batch_first=True).double()
    with torch.no_grad():
        plain.in_proj_weight.copy_(base.in_proj_weight + scale * b_in @ a_in)
        plain.in_proj_bias.copy_(base.in_proj_bias)
        plain.out_proj.weight.copy_(base.out_proj.base_layer.weight + times * scale * b_out @ a_out)
        plain.out_proj.bias.copy_(base.out_proj.base_layer.bias)
        return plain(x, x, x, need_weights=False)[0]


outputs = model(x)
once, twice = ((outputs - by_hand(times)).abs().max().item() for times in (1, 2))
(gradient,) = torch.autograd.grad(model(x).square().mean(), [b_out])
direction, width = torch.randn_like(b_out), 1e-5
with torch.no_grad():
    b_out.add_(direction, alpha=width)
    above = model(x).square().mean()
    b_out.sub_(direction, alpha=2 * width)
    below = model(x).square().mean()
slope = ((above - below) / (2 * width)).item()
along = (gradient * direction).sum().item()
print("peft", peft.__version__, "torch", torch.__version__)
print(f"outputs differ from W + s B A by {once:.1e}, from W + 2 s B A by {twice:.1e}")
print(f"slope of the loss along a direction of lora_B of out_proj {slope:.6f}, by autograd {along:.6f}")
sys.exit(not (once > 1e-3 and twice < 1e-12 and abs(along / slope - 0.5) < 1e-3))
PYTHON
