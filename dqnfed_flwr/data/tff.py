"""The HDF5 form of TensorFlow Federated: `examples/<client>/<field>`, in one file for training and one for testing.

Two sets are known by their fields. `pixels` and `label` (federated EMNIST) are images by writer, stored as bytes.
`tokens` (StackOverflow) are sentences by user; the task is the next word: every word of a sentence, and its end, is a
class, with the `length` (20) words before it as the sample, filled up on the left. Of StackOverflow, whose full form
has 136 million sentences, the first `users` (100) in alphabetical order and the first `sentences` (128) of each are
taken, 0 for all. Classes are the `vocabulary` (10000) most frequent words, after stackoverflow.word_count where that
lies next to the training file, otherwise after the sentences read. A client is one group.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.data.reading import FormOptions, Samples, by_client, need, number, text_lines
from dqnfed_flwr.data.store import Arrays
from dqnfed_flwr.errors import DataError

PAD, FIRST_WORD = 0, 1
"""Tokens: 0 fills up, then the words by frequency, then any other word, beginning and end of a sentence."""
MOST_VALUES = 1 << 30
"""Tokens of all windows of a part, of four bytes each."""
WORD_COUNT = "stackoverflow.word_count"
Client = dict[str, NDArray[Any]]
_DIGITS, _CHARACTERS = 10, 62  # classes of the two forms of federated EMNIST
MOST_SENTENCES = 10_000_000
"""Sentences of a part, which are held in memory; some 100 bytes each."""
LONGEST = 1000
"""Words before the next one that a sample may hold."""


def choose_words(counted: Path, sentences: Iterable[bytes], vocabulary: int) -> dict[str, int]:
    """Token of each of the most frequent words, after the file `counted` where it exists, else after the sentences.

    DataError if the file names fewer words.
    """
    if counted.exists():
        frequent = [line.split()[0] for line in text_lines(counted)[:vocabulary]]
        if len(frequent) < vocabulary:
            raise DataError(
                f"data: {counted} has {len(frequent)} words, where vocabulary={vocabulary} are asked for; "
                + (f"lower vocabulary to {len(frequent)}, or " if frequent else "")
                + "put a count of more words there, or delete it: then the words of the sentences are counted"
            )
    else:
        counts = Counter(word for line in sentences for word in _words(line))
        frequent = [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:vocabulary]]
    return {word: FIRST_WORD + place for place, word in enumerate(frequent)}


def windows(sentences: Iterable[bytes], words: Mapping[str, int], length: int) -> NDArray[np.int32]:
    """Every word of the sentences, and their ends, each behind the `length` tokens before it [N, length + 1]."""
    unknown, begin, end = (FIRST_WORD + len(words) + place for place in range(3))
    coded = ([begin, *(words.get(word, unknown) for word in _words(line)), end] for line in sentences)
    found = [_contexts(sentence, length) for sentence in coded]
    return np.concatenate(found) if found else np.empty((0, length + 1), np.int32)


def check_size(sentences: Iterable[bytes], length: int, where: str) -> None:
    """Count the windows before they are made; DataError if they would fill more than `MOST_VALUES`."""
    values = sum(len(_words(line)) + 1 for line in sentences) * (length + 1)
    if values > MOST_VALUES:
        raise DataError(
            f"data: {where}: the windows of these sentences are {4 * values / 2**30:.1f} GiB, more than "
            f"{4 * MOST_VALUES / 2**30:.0f}; take fewer with users=, sentences= or a smaller length="
        )


def _words(line: bytes) -> list[str]:
    return line.decode("utf-8", "replace").split()


def _contexts(sentence: list[int], length: int) -> NDArray[np.int32]:
    """Every token but the first, each behind the `length` before it [N, length + 1]."""
    padded = np.array([PAD] * (length - 1) + sentence, dtype=np.int32)
    return np.lib.stride_tricks.sliding_window_view(padded, length + 1)


def tff_files(paths: Sequence[Path]) -> list[Path]:
    """The training file, its test file, and the word count where there is one."""
    train, test = _pair(paths)
    counted = train.with_name(WORD_COUNT)
    needed = need([train, test], "a pair of files such as fed_emnist_train.h5 and fed_emnist_test.h5")
    return [*needed, *([counted] if counted.exists() else [])]


def read_tff(paths: Sequence[Path], options: FormOptions, scratch: Path) -> Arrays:
    """Samples client by client; group g is the client `group_names[g]`."""
    train, test = _pair(paths)
    if _is_text(train):
        users, sentences = number(options, "users", 100), number(options, "sentences", 128)
        length = number(options, "length", 20, least=1, most=LONGEST)
        parts = _read_parts((train, test), ("tokens",), users, sentences)
        vocabulary = number(options, "vocabulary", 10_000, least=1)
        words = choose_words(train.with_name(WORD_COUNT), _sentences(parts["train"]), vocabulary)
        return _next_words(parts, words, length)
    parts = _read_parts((train, test), ("pixels", "label"), number(options, "users", 0), 0)
    samples = {part: {name: _image(client) for name, client in clients.items()} for part, clients in parts.items()}
    for clients in samples.values():
        if len(shapes := {x.shape[1:] for x, _ in clients.values()}) > 1:
            raise DataError(f"data: images of the shapes {sorted(shapes)} in one part; keep one set a file")
    return {**by_client(samples, np.int64), "num_classes": np.array(_classes((train, test)))}


def _pair(paths: Sequence[Path]) -> tuple[Path, Path]:
    """The training and the test file."""
    if len(paths) > 1:
        train, test = paths
    else:
        train = paths[0]
        if train.is_dir():
            found = sorted(train.glob("*train*.h5"))
            if len(found) != 1:
                raise DataError(f"data: {train} holds {len(found)} files *train*.h5; name one: tff:TRAIN.h5")
            train = found[0]
        test = train.with_name(train.name.replace("train", "test"))
    if train == test:
        raise DataError(f"data: {train} would be its own test part; name the other file: tff:TRAIN.h5,TEST.h5")
    return train, test


def _open(file: Path) -> Any:
    try:
        h5py = import_module("h5py")
    except ImportError:
        raise DataError("data: .h5 files are read by h5py: pip install 'dqnfed-flwr[datasets]'") from None
    try:
        content = h5py.File(file, "r")
    except OSError as error:
        if "signature not found" in str(error) and file.stat().st_size:
            raise DataError(
                f"data: {file} is no HDF5 ({error}); allowed is TensorFlow Federated's form, with "
                "examples/<client>/<field>"
            ) from error
        raise DataError(f"data: {file} is no whole .h5 file ({error}); fetch it again") from error
    clients = content.get("examples")
    if not isinstance(clients, h5py.Group) or not len(clients) or not isinstance(clients[min(clients)], h5py.Group):
        content.close()
        raise DataError(f"data: {file} has no clients under 'examples'; it is not of TensorFlow Federated's form")
    return content


def _is_text(file: Path) -> bool:
    """Tell sentences from images by the fields of the first client."""
    with _open(file) as content:
        fields = set(next(iter(content["examples"].values())))
    if "tokens" in fields:
        return True
    if fields >= {"pixels", "label"}:
        return False
    raise DataError(f"data: {file}: clients have the fields {sorted(fields)}; known are pixels and label, or tokens")


def _read_parts(pair: tuple[Path, Path], fields: Sequence[str], users: int, most: int) -> dict[str, dict[str, Client]]:
    """Fields of each client of both parts; the first `users` of the training part, the first `most` rows of each."""
    with _open(pair[0]) as content:
        names = sorted(content["examples"])[: users or None]
    parts = {}
    for part, file in zip(("train", "test"), pair, strict=True):
        with _open(file) as content:
            clients = content["examples"]
            if "tokens" in fields:
                _check_count([clients[name] for name in names if name in clients], most, file)
            parts[part] = {
                name: _client(clients[name], fields, most, f"{file}: client {name}")
                for name in names
                if name in clients
            }
        if not parts[part]:
            raise DataError(f"data: {file} has none of the clients of {pair[0]}; the two files do not belong together")
        if not any(len(client[fields[0]]) for client in parts[part].values()):
            raise DataError(
                f"data: {file} has no sample of the clients that are read; read more of them with users= (0 for all)"
            )
    return parts


def _check_count(clients: Sequence[Any], most: int, file: Path) -> None:
    """Count the sentences before they are read."""
    sizes = [math.prod(client["tokens"].shape) for client in clients if _holds(client, "tokens")]
    found = sum(min(size, most) if most else size for size in sizes)
    if found > MOST_SENTENCES:
        raise DataError(
            f"data: {file}: {found:,} sentences, of which at most {MOST_SENTENCES:,} fit into memory; take fewer with "
            "users= and sentences="
        )


def _client(found: Any, fields: Sequence[str], most: int, where: str) -> Client:
    """Fields of one client, the first `most` rows of each; 0 for all."""
    try:
        client = {field: np.asarray(found[field][: most or None]) for field in fields}
    except OSError as error:  # a damaged chunk
        raise DataError(f"data: {where} cannot be read ({error}); fetch the file again") from error
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"data: {where} cannot be read ({error}); each client has arrays named {' and '.join(fields)}"
        ) from error
    if "tokens" in client and not all(isinstance(line, bytes) for line in client["tokens"].ravel()):
        raise DataError(f"data: {where}: tokens of dtype {client['tokens'].dtype}, where sentences are asked for")
    if "pixels" in client:
        pixels, labels = client["pixels"], client["label"]
        if len(pixels) != len(labels) or labels.dtype.kind not in "iu":
            raise DataError(f"data: {where}: {len(pixels)} images and {len(labels)} labels of dtype {labels.dtype}")
        if pixels.size and not (pixels.min() >= 0 and pixels.max() <= 1):
            raise DataError(
                f"data: {where}: pixels from {pixels.min()} to {pixels.max()}; in TensorFlow Federated's form they lie "
                "from 0 to 1"
            )
    return client


def _image(client: Client) -> Samples:
    """A client's images, as bytes, and their labels."""
    return np.rint(client["pixels"] * 255).astype(np.uint8), client["label"].astype(np.int64)


def _classes(pair: tuple[Path, Path]) -> int:
    """Classes of the whole files, whichever clients of them are read: a digits-only form has no label above 9."""
    for file in pair:
        with _open(file) as content:
            for name, client in content["examples"].items():
                if _holds(client, "label"):
                    labels = _client(client, ("label",), 0, f"{file}: client {name}")["label"]
                    if labels.size and labels.max() >= _DIGITS:
                        return _CHARACTERS
    return _DIGITS


def _holds(client: Any, field: str) -> bool:
    """Whether a client is a group with an array of that name."""
    h5py = import_module("h5py")
    return isinstance(client, h5py.Group) and isinstance(client.get(field), h5py.Dataset)


def _sentences(clients: Mapping[str, Client]) -> Iterator[bytes]:
    return (line for client in clients.values() for line in client["tokens"])


def _next_words(parts: Mapping[str, Mapping[str, Client]], words: Mapping[str, int], length: int) -> Arrays:
    samples: dict[str, dict[str, Samples]] = {}
    for part, clients in parts.items():
        check_size(_sentences(clients), length, f"the {part} part")
        rows = {name: windows(client["tokens"], words, length) for name, client in clients.items()}
        samples[part] = {name: (each[:, :-1], each[:, -1].astype(np.int64)) for name, each in rows.items()}
    classes = FIRST_WORD + len(words) + 3  # any other word, beginning and end
    return {**by_client(samples, np.int64), "num_classes": np.array(classes)}
