"""Messages of a masked run besides tasks: what the server asks a client, and what that says.

| what | record | keys |
|---|---|---|
| both ways | ConfigRecord `masked` | `ask` and what goes with it; an answer, or `refused` and the `peers` it is for |
| client to server | ArrayRecord `vectors` | `summand` [D], uint32; uint16 where sums are short |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from dqnfed_flwr.errors import WireError
from dqnfed_flwr.wire.codecs import VECTORS, Array, of_kind, view

MASKED, ASK, REFUSED, NAMED, SUMMAND = "masked", "ask", "refused", "peers", "summand"
"""Keys."""


def encode_masked(values: Mapping[str, Any], summand: NDArray[np.unsignedinteger[Any]] | None = None) -> RecordDict:
    """Content of a question, or of an answer."""
    content = RecordDict({MASKED: ConfigRecord(dict(values))})
    if summand is not None:
        vectors = ArrayRecord()
        vectors[SUMMAND] = Array(summand)
        content[VECTORS] = vectors
    return content


def decode_masked(content: RecordDict) -> dict[str, Any] | None:
    """What a message says; None where it is of another kind. Nothing of it is checked."""
    found = of_kind(content, ConfigRecord).get(MASKED)
    return None if found is None else dict(found)


def decode_summand(content: RecordDict, dim: int, bits: int = 32) -> NDArray[Any]:
    """The summand of a client [D], in words of so many bits; `WireError` if there is none."""
    vectors = of_kind(content, ArrayRecord).get(VECTORS)
    if vectors is None or SUMMAND not in vectors:
        raise WireError("missing-key", f"records {sorted(content)[:8]}; need {SUMMAND!r}")
    return view(vectors[SUMMAND], (dim,), (f"uint{bits}",))
