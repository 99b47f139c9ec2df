"""Whether a prior knows the images of an audit, and what is said where it does not."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from privaudit import Auditor, Budget
from privaudit._records import MISFIT_DB
from privaudit._samples.digits import MEAN, STD, digits_client, drawn_digits
from privaudit.attacks import Drag
from privaudit.priors.diffusion import DIFFUSION_PRIORS, loaded
from privaudit.session.prior_fit import denoising_db
from privaudit.verdict import AttackEvidence, Evidence, judge
from privaudit.verdict.policy import Policy


def digits() -> Tensor:
    """Drawn for the demo; no prior learnt from them."""
    pixels = np.stack([np.asarray(image) for image in drawn_digits()])
    return torch.from_numpy(pixels).float()[:, None] / 255


def checks() -> Tensor:
    """A fine chessboard, which is no digit."""
    rows, columns = torch.arange(28)[:, None], torch.arange(28)[None]
    return ((rows // 2 + columns // 2) % 2).float()[None, None]


def test_a_prior_of_digits_knows_digits_and_no_chessboard() -> None:
    prior = loaded("digits", DIFFUSION_PRIORS, torch.device("cpu"))
    own = prior.card.denoising_db["300"]
    assert denoising_db(prior, digits(), 0) > own - MISFIT_DB
    assert denoising_db(prior, checks(), 0) < own - MISFIT_DB


def audited(images: Tensor) -> tuple[float | None, list[str]]:
    auditor = Auditor(
        digits_client(), split="deep", mean=MEAN, std=STD,
        attacks=[Drag(steps=4, rounds=1)], budget=Budget(seconds=60),
    )  # fmt: skip
    result = auditor.audit(images)
    knows = " ".join(result.record.threat_model.knows)
    assert "the prior digits, learnt from" in knows
    prior = result.record.attacks[0].prior
    assert prior is not None
    return prior.fit_db, [w.code for w in result.verdict.warnings]


def test_an_audit_warns_of_a_prior_that_knows_other_images() -> None:
    fit, warnings = audited(checks())
    assert fit is not None
    assert "prior-misfit" in warnings
    fit, warnings = audited(digits())
    assert fit is not None
    assert "prior-misfit" not in warnings


def test_the_warning_names_attack_and_remedy() -> None:
    ran = AttackEvidence(label="drag", state="plateau")
    evidence = Evidence(samples=1, attacks=[ran], misfits={"drag": 7.0})
    (warning,) = [
        w for w in judge(evidence, Policy()).warnings if w.code == "prior-misfit"
    ]
    assert "drag" in warning.text
    assert "7.0 dB" in warning.text
    assert "prior train" in warning.remedy
