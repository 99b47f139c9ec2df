"""MS-SSIM against torchmetrics, which shares no code with it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchmetrics.functional.image import (
    multiscale_structural_similarity_index_measure as reference,
)

from privaudit._controls import shipped_images
from privaudit.metrics import MsSsim, Ssim
from privaudit.metrics.ms_ssim import BETAS

SCALES = {(224, 224): 5, (176, 200): 5, (128, 128): 4, (64, 48): 3, (32, 32): 2}


def pair(size: tuple[int, int], strength: float) -> tuple[Tensor, Tensor]:
    truth = shipped_images(3, (3, *size))[1:3]
    generator = torch.Generator().manual_seed(0)
    apart = strength * torch.randn(truth.shape, generator=generator)
    return truth, (truth + apart).clamp(0, 1)


@pytest.mark.parametrize("size", SCALES)
@pytest.mark.parametrize("strength", [0.02, 0.2, 0.6])
def test_equals_torchmetrics(size: tuple[int, int], strength: float) -> None:
    truth, guess = pair(size, strength)
    count = SCALES[size]
    whole = 1.0 if count == 5 else sum(BETAS[:count])
    betas = tuple(beta / whole for beta in BETAS[:count])
    expected = reference(
        guess.double(), truth.double(),
        reduction="none", data_range=1.0, betas=betas, normalize="relu",
    )  # fmt: skip
    scores = MsSsim().score(truth, guess)
    assert [s.value for s in scores] == pytest.approx(expected.tolist(), abs=1e-6)
    several = f"{count} scales instead of 5"
    assert {s.note for s in scores} == {"" if count == 5 else several}


@pytest.mark.parametrize(
    ("side", "note"),
    [
        (21, "1 scale instead of 5"),
        (11, "1 scale instead of 5"),
        (8, "1 scale instead of 5, window 7 instead of 11"),
    ],
)
def test_one_scale_is_ssim(side: int, note: str) -> None:
    truth, guess = pair((side, 40), 0.1)
    score = MsSsim().score(truth, guess)[0]
    assert score.value == pytest.approx(Ssim().score(truth, guess)[0].value)
    assert score.note == note


def test_inverted_images_score_0_not_nan() -> None:
    truth = pair((32, 32), 0)[0]
    assert Ssim().score(truth, 1 - truth)[0].value == pytest.approx(-0.6, abs=0.4)
    assert MsSsim().score(truth, 1 - truth)[0].value == 0.0


def test_coarse_likeness_counts_more_than_in_ssim() -> None:
    truth, noisy = pair((224, 224), 0.2)
    fine, all_scales = (m.score(truth, noisy)[0].value for m in (Ssim(), MsSsim()))
    assert fine is not None
    assert all_scales is not None
    assert all_scales > fine + 0.2


def test_too_small() -> None:
    flat = torch.zeros(1, 1, 2, 2)
    assert MsSsim().score(flat, flat)[0].note == "ms_ssim is not defined here"
