"""Shallow cuts of real architectures, with weights as they are initialised.

What the slow tests and ``benchmarks/linear_inverse.py`` share. The architectures are
those of the papers; trained weights are conditioned otherwise, so each result states
the condition number.
"""

from __future__ import annotations

import io
import time
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privaudit._pixels import Normalisation
from privaudit.attacks import LinearInverse
from privaudit.config import Budget
from privaudit.exposure import Cut, FeatureExposure
from privaudit.metrics import Ssim
from privaudit.types import Batch, FeatureLayout, FeatureTarget, Reconstruction
from tests.reference.cells import IMAGENET, shared_data

CLIP = Normalisation(
    (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
)
ARCHIVE = "natural_224_eval.zip"


def clip_vit_b_16() -> nn.Module:
    """The vision tower of open_clip's ViT-B/16."""
    import open_clip

    tower: nn.Module = open_clip.create_model("ViT-B-16", pretrained=None).visual
    return tower


def dinov2_base() -> nn.Module:
    """transformers' DINOv2-Base; position embeddings are made for 518 pixels."""
    from transformers import Dinov2Config, Dinov2Model

    model: nn.Module = Dinov2Model(Dinov2Config(image_size=518))
    return model


def torchvision_model(name: str) -> Callable[[], nn.Module]:
    """A model of torchvision by name."""

    def build() -> nn.Module:
        from torchvision import models

        return models.get_model(name, weights=None)  # type: ignore[no-any-return]

    return build


@dataclass(frozen=True)
class LinearCase:
    """One cut.

    Attributes:
        name: For the table.
        build: Makes the model.
        cut: Dotted path of the module whose output is sent.
        layout: Of the features.
        normalisation: Of the model.
        least_ssim: What the mean SSIM has to reach.
    """

    name: str
    build: Callable[[], nn.Module]
    cut: str
    layout: FeatureLayout
    normalisation: Normalisation
    least_ssim: float


_MAP = FeatureLayout("nchw", 0, (112, 112))
CASES = [
    LinearCase(
        "CLIP ViT-B/16, before the pre-LayerNorm", clip_vit_b_16, "patch_dropout",
        FeatureLayout("tokens", 1, (14, 14)), CLIP, 0.99,
    ),
    LinearCase(
        "CLIP ViT-B/16, after the pre-LayerNorm", clip_vit_b_16, "ln_pre",
        FeatureLayout("tokens", 1, (14, 14)), CLIP, 0.95,
    ),
    LinearCase(
        "DINOv2-Base, embeddings", dinov2_base, "embeddings",
        FeatureLayout("tokens", 1, (16, 16)), IMAGENET, 0.99,
    ),
    LinearCase(
        "ResNet-18, first convolution", torchvision_model("resnet18"), "conv1",
        _MAP, IMAGENET, 0.95,
    ),
    LinearCase(
        "ResNet-18, its ReLU", torchvision_model("resnet18"), "relu",
        _MAP, IMAGENET, 0.95,
    ),
    LinearCase(
        "MobileNetV2, first convolution", torchvision_model("mobilenet_v2"),
        "features.0.0", _MAP, IMAGENET, 0.95,
    ),
    LinearCase(
        "MobileNetV2, its ReLU6", torchvision_model("mobilenet_v2"), "features.0",
        _MAP, IMAGENET, 0.9,
    ),
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class LinearResult:
    """What came back from one cut."""

    case: LinearCase
    found: list[Reconstruction]
    ssim: Tensor
    ms_ssim: Tensor
    seconds: float
    cpu_seconds: float

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "cut": self.case.name,
            "images": len(self.found),
            "ssim_mean": round(float(self.ssim.mean()), 5),
            "ssim_min": round(float(self.ssim.min()), 5),
            "ms_ssim_mean": round(float(self.ms_ssim.mean()), 5),
            "seconds_per_image": round(self.seconds / len(self.found), 2),
            "cpu_seconds_per_image": round(self.cpu_seconds / len(self.found), 2),
            "states": sorted({f.state for f in self.found}),
            "reasons": sorted({f.reason for f in self.found}),
            "residual_max": max(f.residual or 0.0 for f in self.found),
            "form": self.found[0].form,
            "notes": list(self.found[0].notes),
        }

    @property
    def images(self) -> Tensor:
        """(count, C, H, W)."""
        return torch.cat([f.images for f in self.found if f.images is not None])


def photographs(count: int) -> Tensor | None:
    """(count, 3, 224, 224) in [0, 1]; None where the archive is missing."""
    from PIL import Image

    folder = shared_data()
    if folder is None or not (folder / ARCHIVE).is_file():
        return None
    with zipfile.ZipFile(folder / ARCHIVE) as archive:
        names = [n for n in sorted(archive.namelist()) if n.endswith(".jpg")][:count]
        opened = [Image.open(io.BytesIO(archive.read(n))).convert("RGB") for n in names]
    arrays = [torch.from_numpy(np.array(one)) for one in opened]
    return torch.stack(arrays).permute(0, 3, 1, 2).float() / 255


def attack_case(case: LinearCase, images: Tensor, seed: int = 0) -> LinearResult:
    """Build the model from ``seed``, cut it, invert what it sends."""
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        model = case.build().eval()
    exposure = FeatureExposure(case.normalisation, Cut(case.cut), case.layout)
    observation = exposure.observe(model, Batch(images, None))
    started, busy = time.perf_counter(), time.process_time()
    found = LinearInverse().run(
        FeatureTarget(model, exposure), observation,
        budget=Budget(), generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    seconds = time.perf_counter() - started
    cpu_seconds = time.process_time() - busy
    made = torch.cat([f.images for f in found if f.images is not None])
    return LinearResult(
        case,
        found,
        Ssim().measure(images, made),
        _ms_ssim(made, images),
        seconds,
        cpu_seconds,
    )


def _ms_ssim(made: Tensor, images: Tensor) -> Tensor:
    """Wang 2003 as torchmetrics computes it, one value an image."""
    from torchmetrics.functional.image import (
        multiscale_structural_similarity_index_measure as ms_ssim,
    )

    pairs = zip(torch.split(made, 1), torch.split(images, 1), strict=True)
    values = [ms_ssim(a.double(), b.double(), data_range=1.0) for a, b in pairs]
    return torch.stack([torch.as_tensor(v) for v in values])
