"""One client of a masked run, and the rules by which it protects itself and its peers, whatever the server says.

1. It agrees once a run, with peers whose identity keys it holds itself, and with at least `PEERS` of them.
2. It answers exchanges in rising order, each once: no rotation turns two rows of a client.
3. It gives one sum a model, and the product of its row with one vector. Asked for the very same again, it gives the
   very same.
4. It gives no sum with fewer than `PEERS` others, nor one of which a client has more than `MOST` of the weights, nor
   one of fewer samples, as `sums.effective` counts them, than its floor. Peers tell it theirs in the agreement.

A request that breaks one is refused in words, and changes nothing. Masks come from the whole request, its clients and
weights: where the server tells two clients different things, their masks do not cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import DQNFedError
from dqnfed_flwr.masked import MOST, PEERS, SHORT
from dqnfed_flwr.masked.given import Given
from dqnfed_flwr.masked.secrets import (
    BOX,
    KEY,
    PART,
    SIGNATURE,
    Draw,
    agreed,
    agreement_public,
    boxed,
    derive,
    digest,
    is_signed,
    sign,
    unboxed,
)
from dqnfed_flwr.masked.sketch import rotated, sketched
from dqnfed_flwr.masked.spread import Spread
from dqnfed_flwr.masked.sums import HALF, Words, effective, in_units, masked, too_few
from dqnfed_flwr.types import Float64Array, FloatArray, under

Values = Mapping[str, Any]
"""What a message says, nothing of it trusted."""


class RefusedError(DQNFedError):
    """A client does not do what the server asks; `peers` are the clients whose keys are the reason, if any."""

    def __init__(self, words: str, peers: Sequence[int] = ()) -> None:
        super().__init__(words)
        self.peers = tuple(peers)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a client is: its number, its private Ed25519 key, what it holds of its peers, and where secrets come from.

    `pins` gives the public key of a client by its number, None for a stranger; `run` is what all clients call the run;
    `floor` is of how many samples a sum must be at least; `given` keeps what was given once, None for memory alone.
    """

    client: int
    private: bytes = field(repr=False)
    pins: Callable[[int], bytes | None]
    run: str
    draw: Draw
    floor: int = 1
    given: Given | None = None


@dataclass(frozen=True, slots=True)
class SumRequest:
    """What the server asks a sum of: exchange and model of the rows, clients, weights, and what 1 stands for.

    `bits` of a word are those of the run.
    """

    exchange: int
    model: bytes
    clients: tuple[int, ...]
    weights: tuple[float, ...]
    unit: float
    bits: int = 32

    def digest(self, run: str) -> bytes:
        """All of it in one: equal for clients that were asked for the same sum of the same run."""
        numbers = np.array(self.clients, np.int64).tobytes(), np.array([*self.weights, self.unit]).tobytes()
        short = ("short",) if self.bits == SHORT else ()  # masks of other words
        return digest("sum", run, self.exchange, self.model, *numbers, *short)


@dataclass(slots=True)
class Member:
    """The state of a client in one run, from `hello` to its last sum; `export` and `load` take it from life to life."""

    identity: Identity
    bits: int = 32  # of a word of a sum
    secrets: dict[str, bytes] = field(default_factory=dict, repr=False)
    pairs: dict[int, bytes] = field(default_factory=dict, repr=False)  # the secret of each pair, once all have agreed
    samples: dict[int, int] = field(default_factory=dict)  # behind a row: its own, and of all once they have agreed
    exchange: int = 0  # the last that was answered
    model: bytes = b""  # whose row is kept
    row: FloatArray | None = field(default=None, repr=False)
    spent: dict[bytes, bytes] = field(default_factory=dict)  # by model, for a sum and a product: what it was asked for

    # --- agreement ---

    def hello(self, samples: int) -> dict[str, Any]:
        """The key of this run, signed; or, after the agreement, what shows that it is there.

        Its row is the mean of so many samples: what it says first holds for the run.
        """
        if "group" in self.secrets:
            return self._agreed()
        own = self.secrets.setdefault("agreement", self.identity.draw("agreement"))
        self.secrets.setdefault("root", self.identity.draw("root"))  # kept as long as that key: no key makes two boxes
        self.samples.setdefault(self.identity.client, samples)
        public = agreement_public(own)
        return {"public": public, "signature": sign(self.identity.private, *self._signed(self.identity.client, public))}

    def invite(self, values: Values) -> dict[str, Any]:
        """For each of the other clients a box with this client's part of the group's secret, and its number of samples.

        `values` are `clients`, and what each said at `hello`.
        """
        self._not_agreed()
        clients = _numbers(values, "clients")
        publics, signatures = _bytes(values, "publics", clients, KEY), _bytes(values, "signatures", clients, SIGNATURE)
        self._check_peers(clients, publics, signatures)
        everybody = digest(
            "everybody", self.identity.run, *(part for pair in zip(clients, publics, strict=True) for part in pair)
        )
        self.pairs = {
            client: self._pair(client, public, everybody)
            for client, public in zip(clients, publics, strict=True)
            if client != self.identity.client
        }
        count = self.samples[self.identity.client].to_bytes(PART - KEY, "big")
        part = derive(self.secrets["root"], "part", everybody) + count  # one for each key of a box
        self.secrets |= {"everybody": everybody, "part": part}
        boxes = [boxed(self._box(self.identity.client, other), self.secrets["part"]) for other in self.pairs]
        return {"to": list(self.pairs), "boxes": boxes}

    def deliver(self, values: Values) -> dict[str, Any]:
        """Open the boxes of the others; the agreement is made.

        `values` are `clients`, all but this one, and the `boxes` that they made for it.
        """
        clients = _numbers(values, "clients")
        if not clients or sorted(self.pairs) != list(clients):
            raise RefusedError(f"boxes of clients {clients[:12]}; this client was invited with {[*self.pairs][:12]}")
        parts = {self.identity.client: self.secrets["part"]}
        for client, box in zip(clients, _bytes(values, "boxes", clients, BOX), strict=True):
            part = unboxed(self._box(client, self.identity.client), box)
            if part is None:
                raise RefusedError(f"the box of client {client} was not made by it for this run", [client])
            if not any(part[KEY:]):
                raise RefusedError(f"client {client} says that its row is the mean of no sample", [client])
            parts[client] = part
        group = derive(b"".join(parts[client] for client in sorted(parts)), "group", self.secrets["everybody"])
        if self.secrets.setdefault("group", group) != group:
            raise RefusedError("this client agreed on another secret in this run; one agreement a run")
        self.samples = {client: int.from_bytes(part[KEY:], "big") for client, part in parts.items()}
        return self._agreed()

    def _check_peers(self, clients: Sequence[int], publics: Sequence[bytes], signatures: Sequence[bytes]) -> None:
        unknown, own = [], self.identity.client
        for client, public, signature in zip(clients, publics, signatures, strict=True):
            pin = self.identity.pins(client)
            if pin is None or not is_signed(pin, signature, *self._signed(client, public)):
                unknown.append(client)
        if own in unknown:
            raise RefusedError(f"client {own} is not in its own list of peers under the key that it has", [own])
        if unknown:
            raise RefusedError(f"clients {unknown[:12]} do not show the keys that client {own} has for them", unknown)
        if own not in clients or publics[clients.index(own)] != agreement_public(self._own_key()):
            raise RefusedError(f"client {own} is not among the clients {list(clients)[:12]} with the key it gave")
        if len(clients) <= PEERS:
            raise RefusedError(f"{len(clients) - 1} peers; a client agrees with {PEERS} at least")

    def _own_key(self) -> bytes:
        """The private half of the key of this run."""
        if "agreement" not in self.secrets:
            raise RefusedError("invited before it was asked for its key of this run")
        return self.secrets["agreement"]

    def _signed(self, client: int, public: bytes) -> tuple[str | int | bytes, ...]:
        return "dqnfed-flwr masked hello", self.identity.run, client, public

    def _pair(self, other: int, public: bytes, everybody: bytes) -> bytes:
        shared = agreed(self._own_key(), public)
        if shared is None:
            raise RefusedError(f"the key of client {other} is none that can be used", [other])
        low, high = sorted((self.identity.client, other))
        return derive(shared, "pair", self.identity.run, low, high, everybody)

    def _box(self, sender: int, receiver: int) -> bytes:
        return derive(self.pairs[receiver if sender == self.identity.client else sender], "box", sender, receiver)

    def _not_agreed(self) -> None:
        if "group" in self.secrets:
            raise RefusedError("this client has agreed in this run already; one agreement a run")

    def _agreed(self) -> dict[str, Any]:
        tag = derive(self.secrets["group"], "tag")
        return {"tag": tag, "members": sorted([self.identity.client, *self.pairs])}

    # --- rounds ---

    def hide(self, exchange: int, model: bytes, row: FloatArray) -> Float64Array:
        """The turned sketch [m] of the row of a model; the row is kept for one sum."""
        self.root()
        again = exchange == self.exchange and model == self.model
        if exchange <= self.exchange and not again:
            raise RefusedError(f"exchange {exchange} after exchange {self.exchange}; each is answered once")
        kept = self.row if again and self.row is not None else np.array(row)
        if not np.isfinite(kept).all():
            raise RefusedError("the gradient holds NaN or Inf")
        self.once("exchange", exchange, said=digest(model, model_digest(kept)), words="another row in one exchange")
        self.exchange, self.model, self.row = exchange, model, kept
        return rotated(sketched(kept, exchange), derive(self.secrets["group"], "rotation", exchange))

    def root(self) -> bytes:
        """A secret of this client alone, the same for a whole run; noise is made of it."""
        if "group" not in self.secrets:
            raise RefusedError("no agreement with peers in this run; a node that began anew cannot come back to it")
        return self.secrets["root"]

    def once(self, *about: str | int | bytes, said: bytes, words: str) -> None:
        """Refuse (`RefusedError` with `words`) if something else was said about it in this run, or by another life."""
        bound, keep = digest(self.root(), said), self.spent if self.identity.given is None else self.identity.given
        if keep.setdefault(digest(*about), bound) != bound:
            raise RefusedError(words)

    def along(self, step: FloatArray) -> float:
        """g . step, of the row that was hidden last; along one step a model: enough of them tell the row."""
        if self.row is None:
            raise RefusedError("a product with a row before a row")
        words = "a product with a second vector at one model; enough of them tell the row"
        self.once("along", self.model, said=model_digest(step), words=words)
        return float(np.dot(np.asarray(self.row, np.float64), np.asarray(step, np.float64)))

    def summand(self, values: Values) -> Words:
        """The part of a sum that is this client's, masked [D]."""
        request, own = replace(read_request(values), bits=self.bits), self.identity.client
        said = request.digest(self.identity.run)
        if "group" not in self.secrets or self.row is None:
            raise RefusedError("a sum before a row: it gave none in this run")
        if (request.exchange, request.model) != (self.exchange, self.model):
            raise RefusedError(f"a sum of exchange {request.exchange}; the last row is of exchange {self.exchange}")
        check_request(request, self.samples, own, self.identity.floor)
        secret = derive(self.secrets["root"], "rounding", said)
        weight, spread = request.weights[request.clients.index(own)], None
        if self.bits == SHORT:
            spread = spread_of(len(self.row), request.clients, request.exchange, request.model)
        words = in_units(self.row, weight, request.unit, secret, spread)
        if words is None:
            raise RefusedError(f"the unit {request.unit:.3g} is too small for the row")
        self.once(
            "sum", request.model, said=said, words="a second sum at one model; two of them tell more than the step"
        )
        others = (client for client in request.clients if client != own)
        return masked(words, own, {client: derive(self.pairs[client], "mask", said) for client in others})

    # --- from life to life ---

    def export(self) -> dict[str, NDArray[Any]]:
        """All of it as arrays: secrets, which stay on the client, too."""
        kept = {f"secret-{name}": value for name, value in self.secrets.items()}
        kept |= {f"pair-{client}": value for client, value in self.pairs.items()}
        kept |= {f"samples-{client}": count.to_bytes(PART - KEY, "big") for client, count in self.samples.items()}
        kept |= {"model": self.model, "spent": b"".join(key + value for key, value in self.spent.items())}
        arrays: dict[str, NDArray[Any]] = {name: np.frombuffer(value, np.uint8) for name, value in kept.items()}
        arrays["exchange"] = np.array(self.exchange)
        return arrays if self.row is None else {**arrays, "row": np.asarray(self.row)}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of `export`; without arrays it is a new client."""
        kept = {name: np.asarray(value).tobytes() for name, value in arrays.items() if value.dtype == np.uint8}
        self.secrets = under("secret-", kept)
        self.pairs = {int(client): value for client, value in under("pair-", kept).items()}
        self.samples = {int(client): int.from_bytes(count, "big") for client, count in under("samples-", kept).items()}
        self.model, spent = kept.get("model", b""), kept.get("spent", b"")
        self.spent = {spent[at : at + KEY]: spent[at + KEY : at + 2 * KEY] for at in range(0, len(spent), 2 * KEY)}
        self.exchange, self.row = int(arrays["exchange"]) if "exchange" in arrays else 0, arrays.get("row")


def spread_of(dim: int, clients: Sequence[int], exchange: int, model: bytes) -> Spread:
    """How the vectors [D] of a short sum are spread: anew in each exchange, by what all who are asked know."""
    return Spread(dim, len(clients), digest("spread", exchange, model))


def model_digest(theta: FloatArray) -> bytes:
    """What a model [D] is called between server and clients."""
    return digest("model", str(theta.dtype), np.ascontiguousarray(theta).tobytes())


def read_request(values: Values) -> SumRequest:
    """The request that a message makes; `RefusedError` where it makes none."""
    clients, found = _numbers(values, "clients"), values.get("weights")
    weights = [each for each in found if type(each) is float] if isinstance(found, list) else []
    exchange, model, unit = values.get("exchange"), values.get("model"), values.get("unit")
    fit = found == weights and len(weights) == len(clients) and isinstance(exchange, int)
    if not (fit and isinstance(exchange, int) and isinstance(model, bytes) and isinstance(unit, float)):
        raise RefusedError(f"no request for a sum: {sorted(map(str, values))[:12]}")
    return SumRequest(exchange, model, clients, tuple(weights), unit)


def check_request(request: SumRequest, samples: Mapping[int, int], own: int, floor: int) -> None:
    """Refuse a sum that would tell more of one client than it may; the group are those whose `samples` are known."""
    clients, sizes = request.clients, [abs(weight) for weight in request.weights]
    if own not in clients or not {*clients} <= samples.keys():
        raise RefusedError(f"a sum of clients {list(clients)[:12]}; the group is {sorted(samples)[:12]}")
    if len(clients) <= PEERS:
        raise RefusedError(f"a sum with {len(clients) - 1} others; {PEERS} are needed at least")
    total = math.fsum(sizes)
    if not (math.isfinite(total) and total > 0 and math.isfinite(request.unit) and request.unit > 0):
        raise RefusedError("weights or unit are not finite and above 0")
    if max(sizes) > MOST * total:
        first = clients[sizes.index(max(sizes))]
        raise RefusedError(f"client {first} has {max(sizes) / total:.0%} of the weights; {MOST:.0%} are allowed")
    if words := too_few(effective(sizes, [samples[client] for client in clients]), floor):
        raise RefusedError(words)


def _numbers(values: Values, key: str) -> tuple[int, ...]:
    """Numbers of clients, rising."""
    found = values.get(key)
    numbers = [each for each in found if type(each) is int and 0 <= each < HALF] if isinstance(found, list) else []
    if found != numbers or sorted({*numbers}) != numbers:
        raise RefusedError(f"{key}: {str(found)[:80]}; need the numbers of clients, rising")
    return tuple(numbers)


def _bytes(values: Values, key: str, clients: Sequence[int], length: int) -> list[bytes]:
    """So many bytes of each client."""
    found = values.get(key)
    words = [each for each in found if type(each) is bytes and len(each) == length] if isinstance(found, list) else []
    if found != words or len(words) != len(clients):
        raise RefusedError(f"{key}: need {length} bytes for each of {len(clients)} clients")
    return words
