"""Messages: the one place that knows record keys. Encoders and decoders are inverses of each other.

| message | record | keys |
|---|---|---|
| server to client | ArrayRecord `model` | `theta`, `step` (when the client needs the line), `buffer.<name>` |
| | ConfigRecord `task` | the fields of `ClientTask`, kebab-case; `directive.<name>` |
| client to server | ArrayRecord `vectors` | `gradient`, `extra.<name>`, `buffer.<name>` |
| | MetricRecord `figures` | see `reply`, `figures` |
| both ways of `query` | ConfigRecord `properties` | the client's properties |

What comes from a client is checked here before anything else sees it: keys, dtype, shape, size, finiteness and range.
"""

from dqnfed_flwr.wire.figures import MAX_EXAMPLES
from dqnfed_flwr.wire.records import FIGURES, PROPERTIES, VECTORS, Buffers, payload
from dqnfed_flwr.wire.reply import ReplyForm, change_row, decode_loss, decode_probe, decode_reply, encode_reply
from dqnfed_flwr.wire.task import (
    Assignment,
    decode_memory,
    decode_model,
    decode_properties,
    decode_task,
    encode_memory,
    encode_model,
    encode_properties,
    encode_task,
    memory_record,
)

__all__ = [
    "FIGURES",
    "MAX_EXAMPLES",
    "PROPERTIES",
    "VECTORS",
    "Assignment",
    "Buffers",
    "ReplyForm",
    "change_row",
    "decode_loss",
    "decode_memory",
    "decode_model",
    "decode_probe",
    "decode_properties",
    "decode_reply",
    "decode_task",
    "encode_memory",
    "encode_model",
    "encode_properties",
    "encode_reply",
    "encode_task",
    "memory_record",
    "payload",
]
