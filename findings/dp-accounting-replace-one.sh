#!/usr/bin/env bash
# The two accountants of dp-accounting 0.6.0 disagree on what a Gaussian event's noise multiplier is under REPLACE_ONE.
# The Renyi accountant ignores the relation: the same epsilon as under ADD_OR_REMOVE_ONE. The accountant of loss
# distributions takes the multiplier over half of what a replacement changes: the epsilon of half the multiplier. Noise
# that one of them finds enough for an epsilon, the other counts as more than twice that epsilon; nothing is raised.
# Exits with 1 if a version behaves otherwise.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "dp-accounting==0.6.0" "absl-py==2.5.1" "dm-tree==0.1.10" "wrapt==2.5.2" \
  "attrs==23.2.0"
"$folder/venv/bin/python" - <<'PYTHON'
import sys

from dp_accounting import GaussianDpEvent, NeighboringRelation
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

ADD, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE


def epsilon(accountant, relation, multiplier):
    made = accountant(neighboring_relation=relation)
    return float(made.compose(GaussianDpEvent(multiplier)).get_epsilon(1e-5))


found = {}
for name, accountant in (("Renyi", RdpAccountant), ("loss distributions", PLDAccountant)):
    for relation in (ADD, REPLACE):
        found[name, relation] = epsilon(accountant, relation, 1.0)
        print(f"{name}, {relation.name}, multiplier 1, delta 1e-5: epsilon {found[name, relation]:.2f}")
half = epsilon(PLDAccountant, ADD, 0.5)
print(f"loss distributions, ADD_OR_REMOVE_ONE, multiplier 0.5: epsilon {half:.2f}")
same = found["Renyi", ADD] == found["Renyi", REPLACE]
doubled = abs(found["loss distributions", REPLACE] - half) < 0.02 * half
sys.exit(0 if same and doubled and half > 2 * found["Renyi", REPLACE] else 1)
PYTHON
