"""The character model that LEAF uses for Shakespeare."""

from __future__ import annotations

from torch import Tensor, nn

from dqnfed_flwr.errors import ModelError

EMBEDDING = 8
HIDDEN = 256
LAYERS = 2


def char_lstm(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Next character after a sequence: embedding of 8, two LSTM layers of 256, one linear layer on the last state.

    Caldas et al., "LEAF: a benchmark for federated settings" (2018). Classes and tokens share one alphabet.

    Raises
    ------
    ModelError
        If the samples are no token sequences (length,).
    """
    if len(input_shape) != 1:
        raise ModelError(f"model: char-lstm takes token sequences (length,), found samples of shape {input_shape}")
    return CharLstm(num_classes)


class CharLstm(nn.Module):
    """Logits of the token that follows, for an alphabet of `num_classes` tokens."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, HIDDEN, num_layers=LAYERS, batch_first=True)
        self.head = nn.Linear(HIDDEN, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map int64 tokens [N, L] to logits [N, num_classes]."""
        states, _ = self.lstm(self.embedding(tokens))
        logits: Tensor = self.head(states[:, -1])
        return logits
