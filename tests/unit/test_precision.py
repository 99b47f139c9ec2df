"""Hard case 36: clients in mixed or reduced precision leak as others do."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from privaudit import Auditor, Client, record_step
from privaudit._controls import shipped_images
from privaudit._pixels import Normalisation
from privaudit._precision import loss_scale
from privaudit.attacks import Attack
from privaudit.attacks.dropout_inversion import DropoutInversion
from privaudit.attacks.inverting_gradients import InvertingGradients
from privaudit.config import Budget
from privaudit.errors import ConfigError, UnsupportedModelError
from privaudit.exposure import GradientExposure, relative_error
from privaudit.recording import Update
from privaudit.result import AuditResult
from privaudit.types import Batch, Reconstruction
from tests.models.dia import ViT

SHAPE = (3, 16, 16)
IMAGES, LABELS = shipped_images(2, SHAPE), torch.tensor([3, 5])
KINDS: dict[str, tuple[Callable[[nn.Module], nn.Module], Any]] = {
    "bfloat16 autocast": (lambda m: m, "bfloat16"),
    "float16 autocast": (lambda m: m, "float16"),
    "float16 weights": (lambda m: m.half(), None),
    "bfloat16 weights": (lambda m: m.bfloat16(), None),
}
NOTED = {"reduced-precision", "no-full-precision", "loss-scale", "loss-scale-suspected"}


def mlp(p: float = 0.5, *, bias: bool = True) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(768, 48, bias=bias), nn.GELU(), nn.Dropout(p),
        nn.Linear(48, 10),
    )  # fmt: skip


MODELS: dict[str, Callable[[], nn.Module]] = {
    "with bias": mlp,
    "without bias": lambda: mlp(bias=False),
    "vit": lambda: ViT(0.1, size=16),
}


def audit(model: nn.Module, *, attacks: Any = None, **client: Any) -> AuditResult:
    return Auditor(
        model,
        client=Client(batch_size=1, **client),
        attacks=attacks or ["closed_form"],
        budget=Budget(seconds=60),
    ).audit((IMAGES, LABELS))


def noted(result: AuditResult) -> set[str]:
    return {f.code for f in result.record.inventory.findings} & NOTED


def step_under(dtype: torch.dtype) -> Callable[[nn.Module, Tensor, Any], Tensor]:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype):
            return F.cross_entropy(model(x), y)

    return step


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_closed_forms_read_rounded_gradients(name: str, kind: str) -> None:
    convert, autocast = KINDS[kind]
    model = convert(MODELS[name]())
    types = [p.dtype for p in model.parameters()]
    result = audit(model, autocast=autocast)
    assert [p.dtype for p in model.parameters()] == types
    assert result.verdict.word == "leaks"
    assert result.verdict.worst["ssim"].value > 0.95
    assert noted(result) == {"reduced-precision"}
    check = result.record.preflight
    assert check.loss_at_truth == pytest.approx(0, abs=1e-6)
    assert check.noise_floor is not None
    assert 1e-5 < check.noise_floor < 0.05
    assert f"{check.noise_floor:.1e}" in result.record.threat_model.sees[0]
    (found,) = (a for a in result.record.attacks if a.evidence.label == "closed_form")
    assert found.evidence.state == "exact" or "approximate" in found.evidence.reason


def test_float64_is_no_reduced_precision() -> None:
    result = audit(mlp().double())
    assert result.verdict.word == "leaks"
    assert result.attacks["closed_form"].state == "exact"
    assert result.record.preflight.noise_floor is None
    assert not noted(result)
    assert any("cast to float64" in c for c in result.record.inventory.changes)


def test_the_noise_floor_is_that_of_torch_alone() -> None:
    model = mlp(0.0)

    def gradient(autocast: bool) -> dict[str, Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(model(IMAGES[:1]), LABELS[:1])
        values = torch.autograd.grad(loss, list(model.parameters()))
        return dict(zip(dict(model.named_parameters()), values, strict=True))

    expected = relative_error(gradient(False), gradient(True))
    found = audit(model, autocast="bfloat16").record.preflight.noise_floor
    assert found == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_a_training_step_of_ones_own_says_the_same_as_the_setting(name: Any) -> None:
    model, batch = mlp().train(), Batch(IMAGES[:1], LABELS[:1])
    steps = [
        GradientExposure(Normalisation(), **settings).observe(model, batch, seed=1)
        for settings in (
            {"autocast": name},
            {"training_step": step_under(getattr(torch, name))},
        )
    ]
    assert [s.autocast for s in steps] == [getattr(torch, name)] * 2
    first, second = (s.observation.gradients for s in steps)
    assert relative_error(first, second) < 1e-3
    plain = GradientExposure(Normalisation()).observe(model, batch, seed=1)
    assert relative_error(plain.observation.gradients, second) > 1e-4
    assert plain.autocast is None


@pytest.mark.parametrize("kind", KINDS)
def test_searches_run_in_float32_on_what_was_rounded(kind: str) -> None:
    convert, autocast = KINDS[kind]
    torch.manual_seed(0)
    model = convert(nn.Sequential(nn.Flatten(), nn.Linear(768, 48), nn.Linear(48, 10)))
    schedule = DropoutInversion().schedule.model_copy(
        update={"iterations": 400, "patience": 100}
    )
    result = audit(
        model,
        attacks=[DropoutInversion(schedule=schedule), InvertingGradients.tiny()],
        autocast=autocast,
    )
    for label in ("dropout_inversion", "inverting_gradients"):
        assert result.attacks[label].state not in ("failed", "skipped", "missing")
    assert result.verdict.word == "leaks"
    found = next(
        a for a in result.record.attacks if a.evidence.label == "dropout_inversion"
    )
    assert found.loss_truth is not None
    assert abs(found.loss_truth) < 1e-3
    assert found.loss_final is not None
    assert found.loss_start is not None
    assert found.loss_final < 0.05 * found.loss_start


class Casting(nn.Module):
    """Casts by hand what only autocast can put together again."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(768, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x.flatten(1)).bfloat16())  # type: ignore[no-any-return]


def test_a_step_that_cannot_do_without_autocast_is_said() -> None:
    result = audit(
        Casting(),
        attacks=["closed_form", InvertingGradients.tiny()],
        autocast="bfloat16",
    )
    assert noted(result) == {"no-full-precision"}
    assert result.record.preflight.noise_floor is None
    assert result.attacks["inverting_gradients"].state not in ("failed", "missing")
    assert result.verdict.word == "leaks"
    assert "rounded by autocast to bfloat16" in result.record.threat_model.sees[0]


def test_small_float16_values_do_not_become_zero() -> None:
    """Without a loss scale they would, and the audit would see less than the server."""

    def small(output: Any, labels: Tensor) -> Tensor:
        return 1e-8 * F.cross_entropy(output, labels)

    def unscaled(model: nn.Module, x: Tensor, y: Tensor | None) -> Tensor:
        assert y is not None
        with torch.autocast("cpu", torch.float16):
            return small(model(x), y)

    model, batch = mlp(0.0).train(), Batch(IMAGES[:1], LABELS[:1])
    exposure = GradientExposure(Normalisation(), small, autocast="float16")
    seen = exposure.observe(model, batch, seed=0).observation.gradients
    step = GradientExposure(Normalisation(), training_step=unscaled)
    bare = step.observe(model, batch, seed=0).observation.gradients
    assert not bool(bare["1.weight"].any())
    assert bool(seen["1.weight"].any())
    full = exposure.gradient(model, batch, precise=True)
    assert relative_error(full, seen) < 0.01


def test_an_overflow_names_the_layer_and_the_scaler() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(768, 8), nn.Linear(8, 10)).train()
    with torch.no_grad():
        model[2].weight.fill_(float("inf"))  # type: ignore[operator]
    with pytest.raises(
        UnsupportedModelError, match=r"^1\.weight.*infinite.*skipped by a GradScaler"
    ):
        audit(model)


def test_the_setting_is_closed() -> None:
    with pytest.raises(ValidationError, match="autocast"):
        Client.model_validate({"autocast": "float8"})


# Recorded steps


def recorded(
    model: nn.Module, *, scale: float = 1.0, autocast: bool = True
) -> tuple[Update, nn.Module]:
    before = copy.deepcopy(model)
    with record_step(model) as step:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(model(IMAGES[:1]), LABELS[:1])
        torch.autograd.backward(scale * loss)
    return step.update, before


def auditor(model: nn.Module, *, attacks: Any = None, **client: Any) -> Auditor:
    return Auditor(
        model,
        client=Client(**client),
        attacks=attacks or ["closed_form"],
        budget=Budget(seconds=60),
    )


TRUTH = (IMAGES[:1], LABELS[:1])


@pytest.mark.parametrize("name", MODELS)
def test_what_the_recorded_step_ran_under_is_replayed(name: str) -> None:
    update, before = recorded(MODELS[name]())
    assert update.facts.autocast == "bfloat16"
    result = auditor(before).attack_gradient(update, batch_size=1, truth=TRUTH)
    assert result.record.config.client.autocast == "bfloat16"
    assert result.verdict.word == "leaks"
    assert noted(result) == {"reduced-precision"}


def test_no_autocast_is_recorded_as_none() -> None:
    update, before = recorded(mlp(0.0), autocast=False)
    assert update.facts.autocast is None
    result = auditor(before).attack_gradient(update, batch_size=1, truth=TRUTH)
    assert not noted(result)
    assert result.record.preflight.noise_floor is None


def test_another_autocast_than_the_recorded_one_is_refused() -> None:
    update, before = recorded(mlp(0.0))
    with pytest.raises(ConfigError, match=r"autocast: expected 'bfloat16'.*'float16'"):
        auditor(before, autocast="float16").attack_gradient(
            update, batch_size=1, truth=TRUTH
        )


def test_rounding_at_the_truth_does_not_void_the_audit() -> None:
    """A replay rounds elsewhere than the recorded step: that is no wrong truth."""
    update, before = recorded(ViT(0.0, size=16))
    result = auditor(before).attack_gradient(update, batch_size=1, truth=TRUTH)
    error, floor = (
        result.record.preflight.loss_at_truth,
        result.record.preflight.noise_floor,
    )
    assert error is not None
    assert floor is not None
    assert 1e-3 < error < 2 * floor
    assert "truth-not-reached" not in [c.code for c in result.verdict.causes]
    other = (shipped_images(4, SHAPE)[3:], LABELS[:1])
    wrong = auditor(before).attack_gradient(update, batch_size=1, truth=other)
    assert "truth-not-reached" in [c.code for c in wrong.verdict.causes]


@pytest.mark.parametrize("build", [mlp, lambda: ViT(0.0, size=16)], ids=["mlp", "vit"])
def test_without_the_truth_a_match_up_to_the_rounding_is_a_leak(
    build: Callable[[], nn.Module],
) -> None:
    update, before = recorded(build())
    result = auditor(before).attack_gradient(update, batch_size=1)
    assert result.verdict.word == "leaks"
    worst = result.verdict.worst["gradient_match"]
    floor = result.record.preflight.noise_floor
    assert floor is not None
    assert worst.limit == pytest.approx(max(1e-4, 2 * floor))


class Elsewhere(Attack):
    """Says of an image that it is the only one that fits."""

    name = "elsewhere"
    title = "Elsewhere"
    source = "this test"
    noise: float = 0.0
    """How far off, as a standard deviation."""
    determined: bool = True
    """What it claims."""

    @classmethod
    def tiny(cls) -> Elsewhere:
        return cls()

    def run(self, target, observation, *, budget, generator):  # type: ignore[no-untyped-def]
        noise = torch.randn(1, *SHAPE, generator=generator)
        image = (IMAGES[:1] + self.noise * noise).clamp(0, 1)
        return Reconstruction(image, "plateau", determined=self.determined)


@pytest.mark.parametrize(
    ("noise", "determined", "word"),
    [
        (0.0, True, "leaks"),
        (1e-3, True, "leaks"),
        (1e-3, False, "inconclusive"),
        (0.1, True, "inconclusive"),
    ],
)
def test_only_a_close_and_determined_image_counts_up_to_the_rounding(
    noise: float, determined: bool, word: str
) -> None:
    update, before = recorded(mlp(0.0))
    attack = Elsewhere(noise=noise, determined=determined)
    result = auditor(before, attacks=[attack]).attack_gradient(
        update, batch_size=1, truth=(None, LABELS[:1])
    )
    assert result.verdict.word == word


@pytest.mark.parametrize("scale", [2.0**8, 2.0**16])
@pytest.mark.parametrize("autocast", [True, False])
def test_a_loss_scale_is_found_at_the_truth(scale: float, autocast: bool) -> None:
    update, before = recorded(mlp(0.0, bias=False), scale=scale, autocast=autocast)
    result = auditor(before).attack_gradient(update, batch_size=1, truth=TRUTH)
    assert "loss-scale" in noted(result)
    assert result.verdict.word == "leaks"
    assert result.record.preflight.loss_at_truth == pytest.approx(0, abs=1e-2)
    text = next(
        f.text for f in result.record.inventory.findings if f.code == "loss-scale"
    )
    assert f"multiplied by {scale:g}, found" in text


def test_without_the_truth_a_loss_scale_is_found_at_the_image() -> None:
    update, before = recorded(mlp(), scale=2.0**16)
    result = auditor(before).attack_gradient(update, batch_size=1)
    assert result.verdict.word == "leaks"
    assert "loss-scale-suspected" in noted(result)


def test_a_loss_scale_that_hides_the_image_is_asked_for() -> None:
    update, before = recorded(mlp(bias=False), scale=2.0**16)
    asked = auditor(before).attack_gradient(update, batch_size=1)
    assert asked.verdict.word == "inconclusive"
    assert "loss-scale-suspected" in noted(asked)
    given = auditor(before).attack_gradient(update, batch_size=1, loss_scale=2.0**16)
    assert given.verdict.word == "leaks"
    assert "loss-scale" in noted(given)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_a_loss_scale_that_is_none_is_refused(scale: float) -> None:
    update, before = recorded(mlp(0.0))
    with pytest.raises(ConfigError, match=r"loss_scale=\): expected a finite number"):
        auditor(before).attack_gradient(update, batch_size=1, loss_scale=scale)


@pytest.mark.parametrize(
    ("factor", "found"),
    [(1.0, None), (16.0, None), (256.0, 256.0), (65536.0, 65536.0), (300.0, None)],
)
def test_a_loss_scale_is_a_large_power_of_two(
    factor: float, found: float | None
) -> None:
    torch.manual_seed(0)
    guess = {"a": torch.randn(50), "b": torch.randn(3, 7)}
    observed = {n: factor * g + 1e-4 * factor * g.abs() for n, g in guess.items()}
    assert loss_scale(guess, observed, 0.0) == found
    other = {n: 65536.0 * torch.randn_like(g) for n, g in guess.items()}
    assert loss_scale(guess, other, 0.0) is None
    assert loss_scale({n: 0 * g for n, g in guess.items()}, observed, 0.0) is None
