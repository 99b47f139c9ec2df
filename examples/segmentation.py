"""Segmentation: a mask for every image, and a training step that takes both.

On the command line, with a folder of images and a folder of masks of the same names:

    privaudit audit --model segmentation.py:build \\
        --training-step segmentation.py:training_step \\
        --images scans --labels masks --range 0 4095 --batch-size 1 --out out
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit import Auditor, Client
from privaudit._samples import load

CLASSES, SIDE, PATCH = 2, 32, 8


class Segmenter(nn.Module):
    """A small vision transformer that gives each pixel a class; greyscale input."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        tokens = (SIDE // PATCH) ** 2
        self.patches = nn.Conv2d(1, width, PATCH, stride=PATCH)
        self.position = nn.Parameter(torch.randn(1, tokens, width) * 0.02)
        self.encoder = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=128, dropout=0.1, batch_first=True
        )
        self.head = nn.Linear(width, CLASSES * PATCH**2)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, (images, classes, height, width)."""
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.position
        pixels = self.head(self.encoder(tokens)).transpose(1, 2)
        return F.fold(pixels, (SIDE, SIDE), PATCH, stride=PATCH)


def build() -> nn.Module:
    """The model as the client has it, in train mode."""
    torch.manual_seed(0)
    return Segmenter().train()


def training_step(model: nn.Module, images: Tensor, masks: Tensor | None) -> Tensor:
    """Cross-entropy and Dice, as usual in medical segmentation."""
    if masks is None:
        raise ValueError("this step needs masks")
    logits = model(images)
    inside = logits.softmax(1)[:, 1]
    overlap = 2 * (inside * masks).sum() / (inside.sum() + masks.sum())
    return F.cross_entropy(logits, masks) + 1 - overlap


def scans() -> tuple[Tensor, Tensor]:
    """Stand-ins: two 12-bit greyscale pictures, and masks of what is bright in them."""
    grey = [picture.convert("L").tobytes() for picture in load(2, (SIDE, SIDE))]
    data = torch.tensor([list(values) for values in grey]).view(2, 1, SIDE, SIDE)
    images = data * 16  # 0 to 4080, as integers
    return images, (images[:, 0] > 2048).long()


if __name__ == "__main__":
    auditor = Auditor(
        build(),
        training_step=training_step,
        value_range=(0, 4095),
        client=Client(batch_size=1),
    )
    result = auditor.audit(scans())
    print(result.verdict.line)
    print(
        "reconstructions:", tuple(result.attacks["closed_form"].reconstructions.shape)
    )
