"""The main jobs on shipped images: a gradient of a ViT, the features of a cut CNN."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from privaudit.result import AuditResult

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = (224, 224)
PHOTOGRAPHS = 4
ABOUT = {
    "gradient": "Auditing torchvision's ViT-B/16 (dropout .1, random weights) on "
    f"{PHOTOGRAPHS} photographs, one client each: about half a minute on two cores.",
    "split": "Auditing a trained CNN for digits, cut where 256 features leave of 784 "
    "pixels, on 4 digits: under three minutes on two cores.",
}


def build_model(seed: int = 0) -> nn.Module:
    """torchvision's ViT-B/16 with dropout .1, randomly initialised, live head.

    torchvision builds the head with zeros, behind which no gradient flows; it is
    drawn again as fine-tuning recipes do.
    """
    import torch
    from torchvision.models import vit_b_16

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = vit_b_16(dropout=0.1, attention_dropout=0.1, num_classes=1000)
        torch.nn.init.trunc_normal_(model.heads.head.weight, std=0.02)
    return model  # type: ignore[no-any-return]


def run_demo(seed: int = 0) -> AuditResult:
    """Audit the model on shipped photographs, one client per photograph."""
    from privaudit._samples import load
    from privaudit.auditor import Auditor
    from privaudit.config import Client

    auditor = Auditor(
        build_model(seed),
        mean=MEAN,
        std=STD,
        client=Client(batch_size=1),
        seed=seed,
    )
    return auditor.audit((load(PHOTOGRAPHS, SIZE), list(range(PHOTOGRAPHS))))


CUT = "deep"
SECONDS = 120.0
"""Of the split demo, report not counted."""


def run_split_demo(seed: int = 0) -> AuditResult:
    """Audit a trained CNN that is cut where 256 values leave of 784 pixels."""
    from privaudit._samples.digits import MEAN, STD, digits_client, drawn_digits
    from privaudit.auditor import Auditor
    from privaudit.config import Budget

    auditor = Auditor(
        digits_client(),
        split=CUT,
        mean=MEAN,
        std=STD,
        budget=Budget(seconds=SECONDS),
        seed=seed,
    )
    return auditor.audit(drawn_digits())
