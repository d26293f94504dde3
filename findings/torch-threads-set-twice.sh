#!/usr/bin/env bash
# torch.set_num_threads in torch 2.13.0 holds for the calling thread, unless it is the thread's first call of torch.
# The first that asks for the number, or computes in parallel, takes over what was set last anywhere in the process, and
# so undoes it. A thread that asked once before it set its number keeps it. Nothing is raised or warned of.
# Exits with 1 if a version behaves otherwise.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "torch==2.13.0" "numpy==2.4.6"
"$folder/venv/bin/python" - <<'PYTHON'
import sys
from threading import Barrier, Thread

import torch

found = {}


def work(asked_before):
    if asked_before:
        torch.get_num_threads()
    torch.set_num_threads(1)
    both_set.wait()
    main_has_set.wait()
    found[asked_before] = torch.get_num_threads()


both_set, main_has_set = Barrier(3), Barrier(3)
threads = [Thread(target=work, args=(before,)) for before in (False, True)]
for thread in threads:
    thread.start()
both_set.wait()
torch.set_num_threads(3)
main_has_set.wait()
for thread in threads:
    thread.join()
print(f"torch {torch.__version__}: each of two threads set 1, then the main thread set 3")
print(f"a thread whose first call set it: {found[False]}")
print(f"a thread that had asked before: {found[True]}")
sys.exit(0 if found == {False: 3, True: 1} else 1)
PYTHON
