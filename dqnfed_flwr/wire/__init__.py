"""Messages: the one place that knows record keys. Encoders and decoders are inverses of each other.

| message | record | keys |
|---|---|---|
| server to client | ArrayRecord `model` | `theta`, `step` (where the line is needed), `buffer.<name>`, `extra.<name>` |
| | the same, with short steps | `digests`, `path.<n>`, `step.<n>`, and `theta` where it has no model: see `Course` |
| | ConfigRecord `task` | the fields of `ClientTask`, kebab-case; `directive.<name>` |
| client to server | ArrayRecord `vectors` | `gradient`, `extra.<name>`, `buffer.<name>` |
| | MetricRecord `figures` | see `reply` |
| | ConfigRecord `lost-model` | alone, of a client that has not the model which the message builds on |
| both ways of `query` | ConfigRecord `properties` | the client's properties |

What comes from a client is checked here before anything else sees it: keys, dtype, shape, size, finiteness and range.
"""

from dqnfed_flwr.wire.codecs import FIGURES as FIGURES
from dqnfed_flwr.wire.codecs import LOST_MODEL as LOST_MODEL
from dqnfed_flwr.wire.codecs import PROPERTIES as PROPERTIES
from dqnfed_flwr.wire.codecs import VECTORS as VECTORS
from dqnfed_flwr.wire.codecs import Buffers as Buffers
from dqnfed_flwr.wire.codecs import change_row as change_row
from dqnfed_flwr.wire.codecs import encode_lost as encode_lost
from dqnfed_flwr.wire.codecs import payload as payload
from dqnfed_flwr.wire.codecs import strays as strays
from dqnfed_flwr.wire.reply import BELOW_FLOOR as BELOW_FLOOR
from dqnfed_flwr.wire.reply import MAX_EXAMPLES as MAX_EXAMPLES
from dqnfed_flwr.wire.reply import ReplyForm as ReplyForm
from dqnfed_flwr.wire.reply import decode_loss as decode_loss
from dqnfed_flwr.wire.reply import decode_probe as decode_probe
from dqnfed_flwr.wire.reply import decode_reply as decode_reply
from dqnfed_flwr.wire.reply import encode_reply as encode_reply
from dqnfed_flwr.wire.task import Assignment as Assignment
from dqnfed_flwr.wire.task import Course as Course
from dqnfed_flwr.wire.task import Leg as Leg
from dqnfed_flwr.wire.task import decode_checked as decode_checked
from dqnfed_flwr.wire.task import decode_memory as decode_memory
from dqnfed_flwr.wire.task import decode_model as decode_model
from dqnfed_flwr.wire.task import decode_properties as decode_properties
from dqnfed_flwr.wire.task import decode_task as decode_task
from dqnfed_flwr.wire.task import encode_checked as encode_checked
from dqnfed_flwr.wire.task import encode_course as encode_course
from dqnfed_flwr.wire.task import encode_memory as encode_memory
from dqnfed_flwr.wire.task import encode_model as encode_model
from dqnfed_flwr.wire.task import encode_properties as encode_properties
from dqnfed_flwr.wire.task import encode_task as encode_task
from dqnfed_flwr.wire.task import memory_record as memory_record
from dqnfed_flwr.wire.task import read_task as read_task
from dqnfed_flwr.wire.task import task_record as task_record
