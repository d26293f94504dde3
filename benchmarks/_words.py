"""Words read off gradients: the row of a word in an embedding's gradient is 0 unless the word is in a sample."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn

LENGTH, WIDTH = 12, 16
"""Words of a sample, and values of an embedded one."""


def texts() -> tuple[Tensor, Tensor, int]:
    """Python's manual in samples: words [N, `LENGTH`] by number, the next word [N], and how many words there are."""
    pages: list[str] = [topics[name] for name in sorted(topics)]
    said = re.findall(r"[a-z]+", " ".join(pages).lower())
    numbers = {word: number for number, word in enumerate(sorted({*said}))}
    whole = len(said) // (LENGTH + 1) * (LENGTH + 1)
    lines = torch.tensor([numbers[word] for word in said[:whole]]).view(-1, LENGTH + 1)
    return lines[:, :-1], lines[:, -1], len(numbers)


class Bag(nn.Module):
    """The next word from the mean of the embedded words before it."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(words, WIDTH), nn.Linear(WIDTH, words)

    def forward(self, lines: Tensor) -> Tensor:
        """Of lines [B, L], logits [B, words]."""
        return torch.as_tensor(self.out(self.words(lines).mean(1)))


def bag(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """`Bag` as the package builds models."""
    del input_shape
    return Bag(num_classes)


def lengths(gradient: Tensor, words: int) -> Tensor:
    """How long the row of each word is [words] in a gradient [D] of `Bag`."""
    rows: Tensor = gradient[: words * WIDTH].view(words, WIDTH).double()
    return rows.square().sum(1).sqrt()


def found(scores: Sequence[Tensor], groups: Sequence[Tensor]) -> tuple[float, float]:
    """Share of the words of each group of samples that are guessed, and of those that occur once; the mean of groups.

    As many words are guessed as the group has, those with the highest of its scores [words].
    """
    shares = []
    for score, group in zip(scores, groups, strict=True):
        counts = torch.bincount(group.flatten(), minlength=len(score))
        guessed = torch.zeros_like(counts, dtype=torch.bool)
        guessed[score.topk(int((counts > 0).sum())).indices] = True
        shares.append([float(guessed[wanted].double().mean()) for wanted in (counts > 0, counts == 1)])
    every, once = torch.tensor(shares, dtype=torch.float64).mean(0).tolist()
    return every, once
