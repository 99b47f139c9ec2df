"""Masks read off the gradient, where units are zero of their own accord."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from privaudit import Auditor, Budget, Client
from privaudit._controls import shipped_images
from privaudit.attacks.dropout_inversion import DropoutInversion

SHAPE = (3, 12, 12)


def _relu(*, frozen: bool = False) -> nn.Module:
    torch.manual_seed(0)
    first = nn.Linear(432, 32).requires_grad_(not frozen)
    return nn.Sequential(
        nn.Flatten(), first, nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10)
    )


def _normed() -> nn.Module:
    """Calls ``F.linear`` style operators on scalars before its first layer."""
    model = _relu()
    nn.utils.spectral_norm(model[1])  # type: ignore[index]
    return model


@pytest.mark.parametrize(
    "model",
    [_relu(), _relu(frozen=True), _normed()],
    ids=["relu", "frozen first layer", "spectral norm"],
)
def test_the_warm_start_reads_masks_of_any_layers(model: nn.Module) -> None:
    attack = DropoutInversion.tiny().model_copy(update={"initialisation": "analytical"})
    auditor = Auditor(
        model,
        attacks=[attack],
        client=Client(batch_size=1),
        budget=Budget(iterations=20),
    )
    result = auditor.audit((shipped_images(1, SHAPE), [1]))
    assert result.attacks["dropout_inversion"].state in ("plateau", "converged")
