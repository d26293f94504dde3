"""Samples by user in json: LEAF's files, and plays as one text a role.

The form `leaf` has files with `users` and `user_data`, in the folders train/ and test/: Caldas et al., "LEAF: a
benchmark for federated settings" (2018). What a sample is, it shows by its look (`leaf_samples`). A user is one group.
Where a file has `num_samples`, it must be right. LEAF's own files of Shakespeare's test part count the 79 windows
between a user's two parts, which it leaves out; that is let pass. Images that are named (CelebA) lie in
raw/img_align_celeba, img_align_celeba or images, below the folder of the set; they are scaled to `size` (84) pixels a
side.

The form `roles` is a json file (plain, .xz, .gz or .bz2) that maps each role to all that it says. It is cut as LEAF
cuts its own edition. Line ends and runs of spaces become one space, and every position of the text is a sample
(`stride` makes it every n-th). A role's last fifth (`test`, in percent) is its test part. A gap of the length of a
window keeps it apart from the training part, so that no character is both trained and tested on. A role is one group.
Roles too short to have both parts are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dqnfed_flwr.data.images import decode
from dqnfed_flwr.data.leaf_samples import ALPHABET, LENGTH, NotPixels, SampleReader, UnknownSampleError, windows
from dqnfed_flwr.data.reading import FormOptions, Samples, by_client, json_of, need, number, unpacked
from dqnfed_flwr.data.store import Arrays, console
from dqnfed_flwr.errors import DataError

PARTS = ("train", "test")
IMAGES = ("raw/img_align_celeba", "img_align_celeba", "images")
"""Where images that are named may lie, below the folder of the set; the first that exists."""
KEYS = "users (a list), user_data (by user x and y), and perhaps num_samples and hierarchies"


def leaf_files(paths: Sequence[Path]) -> list[Path]:
    """All json files of both parts, and the folder of images where there is one."""
    folders = need([paths[0] / part for part in PARTS], "the folders train/ and test/ that LEAF's preprocess.sh writes")
    found = [sorted(folder.glob("*.json")) for folder in folders]
    for folder, jsons in zip(folders, found, strict=True):
        if not jsons:
            raise DataError(f"data: no .json file in {folder}; run LEAF's preprocess.sh, or name the folder above")
    images = _images(paths[0])
    return [*(file for jsons in found for file in jsons), *([images] if images else [])]


def _images(root: Path) -> Path | None:
    return next((root / place for place in IMAGES if (root / place).is_dir()), None)


def read_leaf(paths: Sequence[Path], options: FormOptions, scratch: Path) -> Arrays:
    """Samples in the order of files and users; group g is the user `group_names[g]`."""
    size = number(options, "size", 84, least=1)
    reader = SampleReader(words=number(options, "words", 1000, least=1))
    try:
        parts = _parts(paths[0], reader)
    except NotPixels as found:  # the users before may have had pixels by chance: what a sample is holds for the set
        _tell(f"{paths[0]}: {found}")
        reader = SampleReader(words=reader.words, pixels=False)
        parts = _parts(paths[0], reader)
    arrays = by_client(parts, np.int32)
    if reader.kind == "names":
        for part in PARTS:
            files = _named_images(paths[0], arrays[f"x_{part}"].tolist())
            arrays[f"x_{part}"] = decode(files, size, scratch / f"{part}.npy")
    return {**arrays, **reader.classes(arrays)}


def _parts(root: Path, reader: SampleReader) -> dict[str, dict[str, Samples]]:
    """Both parts by user, of samples of one kind."""
    parts = {part: dict(_users(root / part, reader)) for part in PARTS}
    for part, users in parts.items():
        if not users:
            raise DataError(f"data: no sample in {root / part}; LEAF's preprocess.sh has not run to its end")
        samples = sum(len(y) for _, y in users.values())
        _tell(f"{root / part}: users: {len(users):,}, samples: {samples:,}, {reader.words_for_kind}")
        shapes = {x.shape[1:] for x, _ in users.values()}
        if len(shapes) > 1:
            raise DataError(f"data: samples of the shapes {sorted(shapes)} in {root / part}; keep one set a folder")
    return parts


def _tell(text: str) -> None:
    console().print(text, markup=False, soft_wrap=True)


def _named_images(root: Path, names: Sequence[str]) -> list[Path]:
    """The files of these images; DataError where they are not there."""
    folder = _images(root)
    if folder is None:
        raise DataError(
            f"data: {root} has names of images, such as {names[0]}, and no folder of them; put the images into "
            f"{root / IMAGES[0]}, {', '.join(IMAGES[1:-1])} or {IMAGES[-1]}"
        )
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise DataError(
            f"data: {len(missing)} of {len(names)} images that {root} names are not in {folder}, first {missing[0]}; "
            "put them there"
        )
    return [folder / name for name in names]


def _users(folder: Path, reader: SampleReader) -> Iterator[tuple[str, Samples]]:
    """Users who have samples, each of whom is in one file of the part."""
    places: dict[str, Path] = {}
    for file in sorted(folder.glob("*.json")):
        content = json_of(file, file.read_bytes())
        _check_form(file, content)
        _check_counts(file, content, folder.name)
        for user in content["users"]:
            if str(user) in places:
                raise DataError(
                    f"data: user {user!r} is twice in {folder}: in {places[str(user)]} and in {file}; a user is in "
                    "a part once: delete the copy, or keep one set a folder"
                )
            places[str(user)] = file
            given = content["user_data"][user]
            if given["y"]:
                try:
                    yield str(user), reader.read(given["x"], given["y"], str(user))
                except UnknownSampleError as error:
                    raise DataError(f"data: {file}: user {user!r}: {error}") from error


def _check_form(file: Path, content: Any) -> None:
    """Whether there is what a file of LEAF has; DataError says what was found."""
    found = ""
    if not isinstance(content, dict):
        found = f"a json {type(content).__name__}"
    elif not isinstance(content.get("users"), list) or not isinstance(content.get("user_data"), dict):
        found = f"the keys {', '.join(map(str, list(content)[:8])) or 'none'}"
    else:
        data = content["user_data"]
        for user in content["users"]:
            given = data.get(user) if isinstance(user, str) else None
            if not isinstance(given, dict) or not all(isinstance(given.get(key), list) for key in ("x", "y")):
                found = f"no lists x and y of user {user!r} in user_data"
                break
    if found:
        raise DataError(f"data: {file} is not of LEAF's form: found {found}; it has {KEYS}")


def _check_counts(file: Path, content: Mapping[str, Any], part: str) -> None:
    """Compare `num_samples`, where it is given, with the labels that are there; DataError if they differ."""
    users, counts = content["users"], content.get("num_samples")
    if counts is None:
        return
    fault = "" if isinstance(counts, list) else f"num_samples is a {type(counts).__name__}"
    if not fault and len(counts) != len(users):
        fault = f"{len(users)} users, and num_samples of {len(counts)}"
    for user, count in [] if fault else zip(users, counts, strict=True):
        x, labels = content["user_data"][user]["x"], content["user_data"][user]["y"]
        left_out = LENGTH - 1 if part == "test" and x and isinstance(x[0], str) and len(x[0]) == LENGTH else 0
        if count not in (len(labels), len(labels) + left_out):
            fault = f"user {user!r} has {len(labels)} samples, num_samples says {count}"
            break
    if fault:
        raise DataError(f"data: {file} does not hold what it says: {fault}; fetch or make it again")


def roles_files(paths: Sequence[Path]) -> list[Path]:
    """The file itself."""
    return need(paths, "a json file that maps each role to its text")


def read_roles(paths: Sequence[Path], options: FormOptions, scratch: Path) -> Arrays:
    """Windows of all roles; group g is the role `group_names[g]`."""
    percent, stride = number(options, "test", 20, least=1), number(options, "stride", 1, least=1)
    if percent > 90:
        raise DataError(f"data: test={percent}; give the percentage of a role that is tested on, from 1 to 90")
    roles = _roles(paths[0])
    parts: dict[str, dict[str, Samples]] = {part: {} for part in PARTS}
    for name, text in sorted(roles.items()):
        for part, samples in _split_role(" ".join(text.split()), percent, stride):
            parts[part][name] = samples
    if not parts["train"]:
        raise DataError(f"data: {paths[0]}: no role is long enough; one needs some 180 characters for both parts")
    return {**by_client(parts, np.int32), "num_classes": np.array(len(ALPHABET))}


def _roles(path: Path) -> Mapping[str, str]:
    roles = json_of(path, unpacked(path))
    if not isinstance(roles, dict) or not all(isinstance(text, str) for text in roles.values()):
        raise DataError(f"data: {path}: expected one json object that maps each role to its text")
    return roles


def _split_role(text: str, percent: int, stride: int) -> Iterator[tuple[str, Samples]]:
    """Training and test part of a role; nothing where one would be empty."""
    x, y = windows(text)
    tested = max(1, len(y) * percent // 100)
    trained = len(y) - tested - LENGTH
    if trained < 1:
        return
    yield "train", (x[:trained:stride], y[:trained:stride])
    yield "test", (x[-tested::stride], y[-tested::stride])
