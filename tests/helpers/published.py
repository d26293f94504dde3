"""Small files of the forms in which data sets are published."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Users = Mapping[str, tuple[Sequence[Any], Sequence[Any]]]


def write_leaf(folder: Path, part: str, users: Users, name: str = "all_data_0.json") -> Path:
    """One json file of LEAF: users and user_data."""
    (folder / part).mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": list(x), "y": list(y)} for user, (x, y) in users.items()},
    }
    file = folder / part / name
    file.write_text(json.dumps(content))
    return file


def write_both(folder: Path, users: Users) -> None:
    """The same users in both parts."""
    for part in ("train", "test"):
        write_leaf(folder, part, users)


def write_image(file: Path, colour: tuple[int, int, int], size: int = 4, mode: str = "RGB") -> None:
    """One image of a single colour."""
    from PIL import Image

    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), colour).convert(mode).save(file)


def write_h5(file: Path, clients: Mapping[str, Mapping[str, NDArray[Any] | Sequence[bytes]]]) -> Path:
    """One file of TensorFlow Federated: examples/<client>/<field>."""
    import h5py

    with h5py.File(file, "w") as content:
        examples = content.create_group("examples")
        for name, fields in clients.items():
            group = examples.create_group(name)
            for field, values in fields.items():
                group.create_dataset(field, data=values if isinstance(values, np.ndarray) else np.array(values, "S"))
    return file
