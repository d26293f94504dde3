"""What the wrapper and the mod exchange, beside the records of the strategy and of the user's functions.

| message | record | content |
|---|---|---|
| server to client | ConfigRecord `dqnfed.task` | the fields of `ClientTask` |
| | ConfigRecord `dqnfed.model` | `key`: name of the record that holds the model |
| | ArrayRecord `dqnfed.before` | the model that the step leads from, where the client may be asked for other lengths |
| | ConfigRecord `dqnfed.judge` | the fields of `HeldOutTerms`, where clients judge by their held-out parts |
| client to server | ArrayRecord `dqnfed.vectors` | `gradient`: the row, float32 [D] |
| | MetricRecord `dqnfed.figures` | as in `wire.reply` |
| | ConfigRecord `dqnfed.parameters` | `names`: of the arrays that the row is about, in its order |

Each side takes the records off again before the user's function, or the strategy, sees the message.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from dqnfed_flwr import wire
from dqnfed_flwr.client.held_out import HeldOutTerms
from dqnfed_flwr.errors import WireError
from dqnfed_flwr.guarded.arrays import Arrays, read
from dqnfed_flwr.types import ClientReply, ClientTask

PREFIX = "dqnfed."
_TASK, _MODEL, _BEFORE = PREFIX + "task", PREFIX + "model", PREFIX + "before"
_NAMES, _JUDGE = PREFIX + "parameters", PREFIX + "judge"
MOST_NAMES = 100_000
ARMIJO = 0.0
"""Of a client's test, on both sides: a loss need not fall, only not rise above its ceiling."""


@dataclass(frozen=True, slots=True)
class GuardRequest:
    """What the mod finds in a message."""

    task: ClientTask
    arrays: Arrays  # the model received
    before: Arrays | None  # the model before the step that leads there
    terms: HeldOutTerms | None = None  # how it judges by its held-out part, where it shall


def plain(content: RecordDict) -> RecordDict:
    """`content` without the records of this package."""
    return RecordDict({key: record for key, record in content.items() if not key.startswith(PREFIX)})


def model_key(content: RecordDict, model: ArrayRecord) -> str | None:
    """The name of the record of `content` that holds the model; None where none does."""
    records = {key: record for key, record in content.items() if isinstance(record, ArrayRecord)}
    same = [key for key, record in records.items() if record is model]
    return next(iter(same or [key for key, record in records.items() if record == model]), None)


def with_task(
    content: RecordDict, task: ClientTask, key: str, before: ArrayRecord | None, terms: HeldOutTerms | None = None
) -> RecordDict:
    """`content`, whose record `key` is the model, with a task for the mod; a new record."""
    added: dict[str, ArrayRecord | ConfigRecord] = {_TASK: wire.task_record(task), _MODEL: ConfigRecord({"key": key})}
    if before is not None:
        added[_BEFORE] = before
    if terms is not None:
        added[_JUDGE] = ConfigRecord(asdict(terms))
    return RecordDict({**content, **added})


def read_request(content: RecordDict) -> GuardRequest | None:
    """What the wrapper asks for, `WireError` if it is not whole; None where the strategy is not wrapped."""
    task, where = content.get(_TASK), content.get(_MODEL)
    if task is None:
        return None
    if not isinstance(task, ConfigRecord) or not isinstance(where, ConfigRecord):
        raise WireError("missing-key", f"records {sorted(content)}; need {_TASK!r} and {_MODEL!r}")
    model, before, terms = content.get(str(where.get("key"))), content.get(_BEFORE), content.get(_JUDGE)
    if not isinstance(model, ArrayRecord):
        raise WireError("missing-key", f"records {sorted(content)}; need the model {where.get('key')!r}")
    return GuardRequest(
        wire.read_task(task),
        read(model),
        read(before) if isinstance(before, ArrayRecord) else None,
        HeldOutTerms(**terms) if isinstance(terms, ConfigRecord) else None,  # type: ignore[arg-type]
    )


def with_reply(content: RecordDict, reply: ClientReply, names: tuple[str, ...]) -> RecordDict:
    """The user's reply with what the mod adds to it."""
    added = {PREFIX + key: record for key, record in wire.encode_reply(reply).items()}
    return RecordDict({**content, **added, _NAMES: ConfigRecord({"names": list(names)})})


def has_reply(content: RecordDict) -> bool:
    """Whether the mod added anything."""
    return any(key.startswith(PREFIX) for key in content)


def reply_part(content: RecordDict) -> RecordDict:
    """What the mod added, as `wire.decode_reply` reads it."""
    names = {key.removeprefix(PREFIX): record for key, record in content.items() if key.startswith(PREFIX)}
    return RecordDict({key: record for key, record in names.items() if PREFIX + key != _NAMES})


def read_names(content: RecordDict, model: Arrays) -> tuple[str, ...]:
    """Names of the arrays of `model` that the row is about; `WireError` if some are no arrays of floats of it."""
    record = content.get(_NAMES)
    names = record.get("names") if isinstance(record, ConfigRecord) else None
    if not isinstance(names, list) or not 0 < len(names) <= MOST_NAMES or len(set(names)) < len(names):
        raise WireError("missing-key", "no list of the parameters that the gradient is about")
    for name in names:
        if not isinstance(name, str) or name not in model or model[name].dtype.kind != "f":
            raise WireError("extra-key", f"a gradient of {str(name)[:60]!r}, which is no array of floats of the model")
    return tuple(str(name) for name in names)
