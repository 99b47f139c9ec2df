"""The prior of a guided attack: its card, its own drawing, and what that means."""

from __future__ import annotations

from dataclasses import dataclass

from privaudit._prior_card import PriorCard
from privaudit.result import AttackRecord, AuditResult, PriorRecord
from tests.report import build
from tests.report.reading import page_of

UNGUIDED = "images/drag-unguided.png"
CARD = PriorCard(
    name="digits", kind="pixel diffusion", channels=1, size=(28, 28),
    parameters=2_493_348, learnt_from="8,000 digits of MNIST",
    good_for="handwritten digits", not_for="anything else", images=7936, steps=6000,
    seconds=1800.0, loss=0.101,
)  # fmt: skip


@dataclass(frozen=True)
class Guided(build.Case):
    """An audit in which a guided attack drew the first image."""

    unguided_ssim: float | None = 0.12

    def images(self) -> dict[str, bytes]:
        return {**super().images(), UNGUIDED: build.png(77, self.size)}

    def _solver(self) -> AttackRecord:
        solver = super()._solver()
        return solver.model_copy(
            update={
                "prior": PriorRecord(
                    card=CARD, unguided=UNGUIDED, unguided_ssim=self.unguided_ssim
                )
            }
        )


def shown(result: AuditResult) -> str:
    return page_of(result).text


def test_without_a_prior_there_is_no_section() -> None:
    assert "What the attacker knows about images" not in shown(build.Case().result())


def test_the_card_and_the_control_are_there() -> None:
    page = shown(Guided().result())
    for words in (
        "What the attacker knows about images", "digits", "8,000 digits of MNIST",
        "handwritten digits", "anything else", "28×28", "2,493,348 parameters",
        "6,000 steps", "loss 0.101", "Drawn without any features", "0.120", "0.910",
    ):  # fmt: skip
        assert words in page, words
    assert "made no difference" not in page


def test_a_guess_no_better_than_the_prior_alone_is_no_sign_of_safety() -> None:
    page = shown(Guided(ssim=(0.15, 0.2, 0.2), state="plateau").result())
    assert "The features made no difference here" in page
    assert "privaudit prior train" in page


def test_a_control_without_a_score_is_said() -> None:
    assert "could not be scored" in shown(Guided(unguided_ssim=None).result())
