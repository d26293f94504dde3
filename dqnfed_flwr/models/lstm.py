"""Character models: LEAF's for Shakespeare, and one small enough for processors."""

from __future__ import annotations

from torch import Tensor, nn

from dqnfed_flwr.errors import ModelError

EMBEDDING = 8


def char_lstm(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Next character after a sequence: embedding of 8, two LSTM layers of 256, one linear layer on the last state.

    Caldas et al., "LEAF: a benchmark for federated settings" (2018). Classes and tokens share one alphabet.
    """
    _check_tokens("char-lstm", input_shape)
    return CharLstm(num_classes, hidden=256, layers=2)


def char_lstm_small(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Next character after a sequence, as `char_lstm` with one LSTM layer of 64: some 25,000 parameters, not 820,000.

    Ours; no paper has it.
    """
    _check_tokens("char-lstm-small", input_shape)
    return CharLstm(num_classes, hidden=64, layers=1)


def _check_tokens(name: str, input_shape: tuple[int, ...]) -> None:
    if len(input_shape) != 1:
        raise ModelError(f"model: {name} takes token sequences (length,), found samples of shape {input_shape}")


class CharLstm(nn.Module):
    """Logits of the token that follows, for an alphabet of `num_classes` tokens."""

    def __init__(self, num_classes: int, *, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, hidden, num_layers=layers, batch_first=True)
        self.head = nn.Linear(hidden, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map int64 tokens [N, L] to logits [N, num_classes]."""
        states, _ = self.lstm(self.embedding(tokens))
        logits: Tensor = self.head(states[:, -1])
        return logits
