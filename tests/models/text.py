"""Small models on token ids: text, tied text, and tables of categories."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, LONGEST, CLASSES = 60, 32, 16, 3


@dataclass(frozen=True)
class Text:
    """What a small text model is like."""

    dropout: float = 0.0
    positions: bool = True
    tied: bool = False
    frozen: bool = False
    before_norm: bool = True


class SmallText(nn.Module):
    """Embedding, learned positions, two transformer layers, mean, linear head."""

    def __init__(self, like: Text) -> None:
        super().__init__()
        self.e = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.p = nn.Embedding(LONGEST, WIDTH) if like.positions else None
        self.drop = nn.Dropout(like.dropout)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 64, like.dropout, batch_first=True, norm_first=like.before_norm
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.o = nn.Linear(WIDTH, VOCABULARY if like.tied else CLASSES)
        if like.tied:
            self.o.weight = self.e.weight
        if like.frozen:
            self.e.weight.requires_grad_(False)
            if self.p is not None:
                self.p.weight.requires_grad_(False)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        x = self.e(input_ids)
        if self.p is not None:
            x = x + self.p(torch.arange(input_ids.shape[1], device=x.device))
        blank = None if attention_mask is None else attention_mask == 0
        hidden: Tensor = self.encoder(self.drop(x), src_key_padding_mask=blank)
        out: Tensor = self.o(hidden[:, 0])
        return out


def text(like: Text | None = None, seed: int = 0) -> SmallText:
    """The model with weights of a seed of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return SmallText(like or Text())


class Table(nn.Module):
    """Categories: one embedding per column, or one for all with offsets."""

    SIZES = (3, 12, 2, 40)

    def __init__(self, *, together: bool) -> None:
        super().__init__()
        starts = [sum(self.SIZES[:k]) for k in range(len(self.SIZES))]
        self.starts = torch.tensor(starts)
        sizes = (sum(self.SIZES),) if together else self.SIZES
        self.columns = nn.ModuleList(nn.Embedding(n, 4) for n in sizes)
        self.head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x: Tensor) -> Tensor:
        if len(self.columns) == 1:
            rows = self.columns[0](x + self.starts.to(x.device)).flatten(1)
        else:
            rows = torch.cat([e(x[:, k]) for k, e in enumerate(self.columns)], 1)
        out: Tensor = self.head(rows)
        return out


def table(*, together: bool) -> Table:
    """The model with fixed weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Table(together=together)


def flat(*, bias: bool = True, dropout: float = 0.0, sparse: bool = False) -> nn.Module:
    """Hard case 39: embedding, flattened, and a linear layer."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Embedding(50, 8, sparse=sparse),
            nn.Dropout(dropout),
            nn.Flatten(),
            nn.Linear(40, 3, bias=bias),
        )
