"""PyTorch modules for the layers of the built-in models that PyTorch has no module of its own for.

Tensors have the batch as their first dimension. This module needs PyTorch.
"""

import math

import torch
from torch import nn

from patchlight.testbed.graphs.layers import Looked


class Add(nn.Module):
    """The sum of its inputs."""

    def forward(self, first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        """All of one shape."""
        for other in others:
            first = first + other
        return first


class Concat(nn.Module):
    """Its inputs joined along the first dimension of a sample (channels)."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """All of one height and width."""
        return torch.cat(inputs, dim=1)


class Reshaped(nn.Module):
    """The first numbers of each sample in another shape."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As many numbers as the shape holds."""
        flat = x.flatten(1)
        return flat[:, : math.prod(self.shape)].reshape(-1, *self.shape)

    def extra_repr(self) -> str:
        """The shape."""
        return ", ".join(map(str, self.shape))


class Lookup(nn.Module):
    """A row of a table for each token: the token's own, its position's, or its segment's."""

    def __init__(self, entries: int, width: int, of: Looked) -> None:
        super().__init__()
        self.table, self.of = nn.Embedding(entries, width), of

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """``tokens`` has shape (batch, length)."""
        if self.of == "positions":
            rows = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        else:
            rows = tokens if self.of == "tokens" else torch.zeros_like(tokens)
        output: torch.Tensor = self.table(rows)
        return output


class Recurrent(nn.Module):
    """One LSTM layer over its inputs joined along their features; gives the whole sequence."""

    def __init__(self, features: int, width: int, ways: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, width, batch_first=True, bidirectional=ways == 2)

    def forward(self, first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        """Each of shape (batch, length, features)."""
        joined = torch.cat((first, *others), dim=2) if others else first
        output: torch.Tensor = self.lstm(joined)[0]
        return output


class BahdanauAttention(nn.Module):
    """Additive attention (Bahdanau et al. 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_queries = nn.Linear(width, width, bias=False)
        self.of_keys = nn.Linear(width, width, bias=False)
        self.weights = nn.Parameter(torch.rand(width))

    def forward(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Both of shape (batch, length, width)."""
        pairs = self.of_queries(queries).unsqueeze(2) + self.of_keys(keys).unsqueeze(1)
        scores = torch.tanh(pairs) @ self.weights
        return torch.softmax(scores, dim=2) @ keys


class Scores(nn.Module):
    """Queries times keys for each head, out of queries, keys and values side by side."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, joined: torch.Tensor) -> torch.Tensor:
        """(batch, length, 3 × width) to (batch, heads, length, length)."""
        queries, keys, _ = _apart(joined, self.heads)
        return (queries / math.sqrt(queries.shape[-1])) @ keys.transpose(2, 3)


class Mixed(nn.Module):
    """Values averaged by each head's shares, the heads side by side again."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, shares: torch.Tensor, joined: torch.Tensor) -> torch.Tensor:
        """(batch, heads, length, length) and (batch, length, 3 × width)."""
        values = _apart(joined, self.heads)[2]
        return (shares @ values).transpose(1, 2).flatten(2)


def _apart(joined: torch.Tensor, heads: int) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values, each (batch, heads, length, width of a head)."""
    batch, length, width = joined.shape
    split = joined.view(batch, length, 3, heads, width // 3 // heads)
    return split.permute(2, 0, 3, 1, 4).unbind(0)
