"""Done-when 5: an attack that cannot attack must never clear a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor, nn

from privaudit import Auditor, Client, auditor
from privaudit import _ladder as ladder
from privaudit import attacks as registry
from privaudit._controls import shipped_images
from privaudit.attacks import Attack, ClosedForm
from privaudit.result import AuditResult
from privaudit.types import Observation, Reconstruction, Search, Target
from tests.contract.cases import leaky, silent

SHAPE = (3, 12, 12)
Trick = Literal[
    "noise exact", "noise converged", "noise plateau", "noise stopped",
    "noise skipped", "mean exact", "mean plateau", "skipped", "exact without image",
    "converged without image", "raises", "raises silently", "type error", "nan",
    "wrong shape", "transposed", "bytes", "normalised range", "unknown state", "none",
]  # fmt: skip
TRICKS: tuple[Trick, ...] = Trick.__args__  # type: ignore[attr-defined]


class Crippled(Attack):
    """Answers by one trick, whatever it is shown; goes by the name of a rung."""

    name: ClassVar[str] = "closed_form"
    title: ClassVar[str] = "Crippled"
    source: ClassVar[str] = "this test"

    trick: Trick = "noise exact"
    honest_on_controls: bool = False
    """Solves undefended models as the real attack does: the hardest to catch."""

    @classmethod
    def tiny(cls) -> Crippled:
        return cls()

    def run(
        self,
        target: Target,
        observation: Observation,
        *,
        budget: Any,
        generator: torch.Generator,
    ) -> Reconstruction:
        if self.honest_on_controls and not _defended(target):
            return ClosedForm().run(
                target, observation, budget=budget, generator=generator
            )
        noise = torch.rand(
            observation.batch_size, *observation.image_shape, generator=generator
        )
        answer: Reconstruction = _answer(self.trick, noise)
        return answer


class CrippledFactorization(Crippled):
    name: ClassVar[str] = "sparse_factorization"


class CrippledInversion(Crippled):
    name: ClassVar[str] = "dropout_inversion"


def _defended(target: Target) -> bool:
    return target.exposure.dropout and target.exposure.normalisation.mean is not None


def _answer(trick: str, noise: Tensor) -> Any:
    what, _, state = trick.partition(" ")
    if what in ("noise", "mean"):
        images = noise if what == "noise" else torch.full_like(noise, 0.45)
        return Reconstruction(images, state, "trust me", residual=0.0)  # type: ignore[arg-type]
    if trick == "raises":
        raise RuntimeError("broken\nin two lines")
    if trick == "raises silently":
        raise ValueError
    if trick == "type error":
        raise TypeError("'NoneType' object is not subscriptable")
    if trick == "none":
        return None
    if trick == "skipped":
        return Reconstruction(None, "skipped", "no form applies")
    if trick.endswith("without image"):
        return Reconstruction(None, what, "trust me")  # type: ignore[arg-type]
    images = {
        "nan": torch.full_like(noise, float("nan")),
        "wrong shape": noise[:, :1],
        "transposed": noise.flatten(2),
        "bytes": (noise * 255).byte(),
        "normalised range": noise * 4 - 2,
        "unknown state": noise,
    }[trick]
    states = {"unknown state": "superb"}
    return Reconstruction(images, states.get(trick, "exact"), "trust me")  # type: ignore[arg-type]


def dead() -> nn.Module:
    model = leaky()
    model[2] = nn.ReLU()  # type: ignore[operator]
    nn.init.constant_(model[1].bias, -1000.0)  # type: ignore[index]
    return model


MODELS = {"leaky": leaky, "silent": silent, "dead first layer": dead}


def audit(model: nn.Module, attacks: list[str | Attack], seed: int = 0) -> AuditResult:
    images = shipped_images(3, SHAPE)[1:]
    auditor = Auditor(
        model, mean=0.5, std=0.25, client=Client(batch_size=1), attacks=attacks,
        seed=seed,
    )  # fmt: skip
    return auditor.audit((images, torch.tensor([3, 3])))


def check(result: AuditResult) -> None:
    assert result.verdict.word in ("inconclusive", "not run"), result.verdict.line
    assert result.verdict.exit_code in (3, 4)
    assert result.verdict.causes
    assert not result.passed()
    assert not result.passed(max_ssim=0.99)


GIVES_IMAGES = [t for t in TRICKS if t.startswith(("noise", "mean"))]


@pytest.mark.parametrize(
    ("trick", "model"),
    [(t, "leaky") for t in TRICKS]
    + [(t, m) for t in GIVES_IMAGES for m in ("silent", "dead first layer")],
)
def test_no_trick_clears_a_model(trick: Trick, model: str) -> None:
    result = audit(MODELS[model](), [Crippled(trick=trick)])
    check(result)
    control = result.record.positive_control
    assert control is not None
    assert not control.passed
    assert all(a.state != "exact" for a in result.attacks.values())


@pytest.mark.parametrize("trick", [*GIVES_IMAGES, "skipped", "raises"])
def test_nor_does_a_whole_ladder_of_them(trick: Trick) -> None:
    every: list[str | Attack] = [
        Crippled(trick=trick),
        CrippledFactorization(trick=trick),
        CrippledInversion(trick=trick),
    ]
    check(audit(leaky(), every))


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("trick", ["noise exact", "noise converged", "noise plateau"])
def test_no_seed_makes_noise_pass(trick: Trick, seed: int) -> None:
    check(audit(leaky(), [Crippled(trick=trick)], seed=seed))


@pytest.mark.parametrize("model", ["silent", "dead first layer"])
@pytest.mark.parametrize("trick", ["noise exact", "mean exact"])
def test_an_image_that_any_gradient_allows_is_not_exact(
    trick: Trick, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It matches the gradient, it solves the control, and no rung is missing."""
    monkeypatch.setattr(ladder, "GRADIENT_LADDER", ("closed_form",))
    result = audit(MODELS[model](), [Crippled(trick=trick, honest_on_controls=True)])
    control = result.record.positive_control
    assert control is not None
    assert control.passed
    assert result.attacks["closed_form"].state == "failed"
    check(result)


@pytest.mark.parametrize("state", ["exact", "converged", "plateau"])
@pytest.mark.parametrize("searched", [False, True])
def test_a_zero_gradient_is_no_evidence_however_an_attack_ends(
    state: str, searched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ladder, "GRADIENT_LADDER", ("closed_form",))
    _answers(monkeypatch, state, searched=searched)
    check(audit(silent(), [Crippled(honest_on_controls=True)]))


@pytest.mark.parametrize("state", ["exact", "converged"])
@pytest.mark.parametrize("searched", [False, True])
def test_a_claim_without_proof_is_never_strong_evidence(
    state: str, searched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ladder, "GRADIENT_LADDER", ("closed_form",))
    _answers(monkeypatch, state, searched=searched)
    result = audit(leaky(), [Crippled(honest_on_controls=True)])
    assert result.attacks["closed_form"].state in ("failed", "plateau")
    assert result.verdict.strength != "strong"


def _answers(monkeypatch: pytest.MonkeyPatch, state: str, *, searched: bool) -> None:
    search = Search(1.0, 0.0, 10, 1, 10) if searched else None

    def answer(_: Trick, noise: Tensor) -> Any:
        return Reconstruction(noise, state, residual=0.0, search=search)  # type: ignore[arg-type]

    monkeypatch.setattr(f"{__name__}._answer", answer)


def test_a_missing_rung_alone_keeps_the_word_back() -> None:
    trick = Crippled(trick="noise plateau", honest_on_controls=True)
    result = audit(leaky(), [trick])
    assert result.record.positive_control is not None
    assert result.record.positive_control.passed
    missing = {c.code for c in result.verdict.causes}
    assert missing == {"attack-missing"}
    check(result)


def test_swapped_in_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    swapped: dict[str, type[Attack]] = {**registry.ATTACKS, "closed_form": Crippled}
    monkeypatch.setattr(auditor, "GRADIENT", replace(ladder.GRADIENT, family=swapped))
    result = Auditor(leaky(), mean=0.5, std=0.25, attacks=["closed_form"]).audit(
        (shipped_images(2, SHAPE)[1:], torch.tensor([3]))
    )
    check(result)


def test_the_real_one_passes_the_same_audit_by_finding_the_leak() -> None:
    """The tests above can fail: with the honest attack the word is another one."""
    result = audit(leaky(), [ClosedForm()])
    assert result.verdict.word == "leaks"
    assert result.record.positive_control is not None
    assert result.record.positive_control.passed


def test_what_an_attack_raises_is_kept_in_the_record() -> None:
    result = audit(leaky(), [Crippled(trick="raises")])
    assert (
        result.attacks["closed_form"].record.evidence.reason == "RuntimeError: broken"
    )
    result = audit(leaky(), [Crippled(trick="raises silently")])
    assert result.attacks["closed_form"].record.evidence.reason.startswith("ValueError")
    assert [o.state for o in result.attacks["closed_form"].record.outcomes] == [
        "failed"
    ] * 2
