"""Each defense of gradients does what its paper says, on numbers checked by hand."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from privaudit._pixels import Normalisation
from privaudit.defenses import (
    ClientStepContext,
    Defense,
    DpSgd,
    GaussianNoise,
    GradientClipping,
    GradientPruning,
    LaplaceNoise,
    Precode,
    Quantisation,
    SignSgd,
    Soteria,
    TrainData,
)
from privaudit.errors import ConfigError, MissingDependencyError
from privaudit.exposure import GradientExposure, LocalSteps
from privaudit.types import Batch, FeatureLayout

VECTOR = FeatureLayout("vector")
SMALL = {"a": torch.tensor([3.0, -1.0, 0.5, 2.0]), "b": torch.tensor([10.0, -20.0])}


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def context(model: nn.Module, images: Tensor, labels: list[int]) -> ClientStepContext:
    exposure = GradientExposure(Normalisation((0.5,), (0.25,)))
    batch = Batch(images, torch.tensor(labels))
    step = exposure.observe(model, batch, seed=0)
    return ClientStepContext(exposure, model, batch, step.tape)


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, 6), nn.GELU(), nn.Dropout(0.5), nn.Linear(6, 3)
    )


@pytest.fixture
def step(network: nn.Module) -> ClientStepContext:
    return context(network, torch.rand(3, 1, 4, 4), [0, 1, 2])


def sent(defense: Defense, gradients: Mapping[str, Tensor] = SMALL) -> Any:
    """What a defense makes of gradients that needs nothing of the step."""
    nothing: Any = None
    return defense.apply_gradient(gradients, nothing, draws())


@pytest.mark.parametrize("defense", [GaussianNoise, LaplaceNoise])
def test_noise_is_of_the_stated_share_of_the_whole(defense: Any) -> None:
    gradients = {"a": torch.zeros(200_000), "b": 2 * torch.ones(200_000)}
    noisy = sent(defense(noise_std=0.5), gradients)
    # Root mean square of all: √2. Both parameters get the same noise.
    for name, value in noisy.items():
        noise = value - gradients[name]
        assert float(noise.std()) == pytest.approx(0.5 * math.sqrt(2), rel=0.01)
        assert abs(float(noise.mean())) < 0.01
    features = defense(noise_std=0.5).apply_features(
        4 * torch.ones(1, 200_000), VECTOR, draws()
    )
    assert float(features.std()) == pytest.approx(2, rel=0.01)


def test_laplace_noise_has_heavier_tails() -> None:
    gradients = {"a": torch.ones(200_000)}
    tails = [
        float(((v["a"] - 1) ** 4).mean() / ((v["a"] - 1) ** 2).mean() ** 2)
        for v in (sent(GaussianNoise(), gradients), sent(LaplaceNoise(), gradients))
    ]
    assert tails[0] == pytest.approx(3, rel=0.1)
    assert tails[1] == pytest.approx(6, rel=0.1)


@pytest.mark.parametrize("defense", [GaussianNoise, LaplaceNoise])
def test_a_negative_noise_is_refused(defense: Any) -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        defense(noise_std=-0.1)


def test_quantisation_rounds_to_even_levels_of_each_parameter() -> None:
    rounded = sent(Quantisation(bits=2), {"a": torch.tensor([0.0, 0.4, 1.6, 3.0])})
    assert rounded["a"].tolist() == [0, 0, 2, 3]
    one_bit = sent(Quantisation(bits=1))
    assert one_bit["a"].tolist() == [3, -1, -1, 3]
    assert one_bit["b"].tolist() == [10, -20]
    still = sent(Quantisation(bits=1), {"a": torch.full((3,), 0.7)})
    assert torch.equal(still["a"], torch.full((3,), 0.7))


def test_quantisation_rounds_features_and_counts_its_bytes() -> None:
    row = torch.tensor([[0.0, 0.4, 1.6, 3.0]])
    rounded = Quantisation(bits=2).apply_features(row, VECTOR, draws())
    assert rounded.tolist() == [[0, 0, 2, 3]]
    assert Quantisation(bits=2).bytes_of([row]) == 1 + 8


@pytest.mark.parametrize("bits", [0, 17])
def test_quantisation_takes_1_to_16_bits(bits: int) -> None:
    with pytest.raises(ValidationError, match="bits"):
        Quantisation(bits=bits)


def test_pruning_keeps_the_largest_of_each_parameter_or_of_all() -> None:
    half = sent(GradientPruning(ratio=0.5))
    assert half["a"].tolist() == [3, 0, 0, 2]
    assert half["b"].tolist() == [0, -20]
    joint = sent(GradientPruning(ratio=0.5, scope="global"))
    assert joint["a"].tolist() == [3, 0, 0, 0]
    assert joint["b"].tolist() == [10, -20]
    one = sent(GradientPruning(ratio=0.99))
    assert [int(g.count_nonzero()) for g in one.values()] == [1, 1]
    assert GradientPruning().bytes_of([*half.values()]) == 3 * 8


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_pruning_nothing_or_all_is_refused(ratio: float) -> None:
    with pytest.raises(ValidationError, match="ratio"):
        GradientPruning(ratio=ratio)


def test_sign_sends_signs() -> None:
    signs = sent(SignSgd(), {"a": torch.tensor([0.3, -7.0, 0.0])})
    assert signs["a"].tolist() == [1, -1, 0]
    assert SignSgd().bytes_of([torch.zeros(9)]) == 2


def test_clipping_scales_all_parameters_by_one_factor() -> None:
    gradients = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}
    clipped = sent(GradientClipping(max_norm=1), gradients)
    assert clipped["a"].item() == pytest.approx(0.6)
    assert clipped["b"].item() == pytest.approx(0.8)
    short = sent(GradientClipping(max_norm=6), gradients)
    assert short["a"].item() == 3


def test_dp_sgd_clips_each_image_and_takes_the_mean(step: ClientStepContext) -> None:
    clean = step.exposure.gradient(step.model, step.batch, tape=step.tape)
    defense = DpSgd(noise_multiplier=0, max_norm=0.1)
    private = defense.apply_gradient(clean, step, draws())
    for name, value in private.items():
        parts = []
        for row in range(3):
            own = step.gradient_of(row)
            norm = torch.stack([g.norm() for g in own.values()]).norm()
            assert norm > 0.1  # else nothing would be clipped
            parts.append(own[name] * 0.1 / norm)
        torch.testing.assert_close(value, torch.stack(parts).mean(0))
    open_wide = DpSgd(noise_multiplier=0, max_norm=1e6)
    whole = open_wide.apply_gradient(clean, step, draws())
    torch.testing.assert_close(whole, clean)


def test_dp_sgd_adds_noise_of_sigma_c_to_the_sum(step: ClientStepContext) -> None:
    clean = step.exposure.gradient(step.model, step.batch, tape=step.tape)
    base = DpSgd(noise_multiplier=0).apply_gradient(clean, step, draws())
    noise = [
        DpSgd(noise_multiplier=2, max_norm=1.0).apply_gradient(clean, step, draws(s))
        for s in range(30)
    ]
    off = torch.cat([(n[k] - base[k]).flatten() for n in noise for k in base])
    assert float(off.std()) == pytest.approx(2 / 3, rel=0.05)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
def test_both_ways_to_an_images_own_gradient_agree() -> None:
    opacus = pytest.importorskip("opacus")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GELU(), nn.Flatten(), nn.Linear(8, 3))
    step = context(model, torch.rand(3, 1, 4, 4), [0, 1, 2])
    hooked = opacus.GradSampleModule(copy.deepcopy(model), loss_reduction="mean")
    inputs = step.batch.inputs(step.exposure.normalisation)
    loss = F.cross_entropy(hooked(inputs), torch.tensor([0, 1, 2]))
    torch.autograd.backward(loss)
    own = [step.gradient_of(row) for row in range(3)]
    named: dict[str, Any] = dict(hooked._module.named_parameters())
    for name, parameter in named.items():
        ours = torch.stack([gradients[name] for gradients in own])
        torch.testing.assert_close(ours, parameter.grad_sample)


def test_epsilon_falls_with_noise_and_grows_with_steps() -> None:
    pytest.importorskip("opacus")
    plain = DpSgd()
    assert plain.epsilon() == pytest.approx(2.10, abs=0.01)
    assert plain.epsilon(100) < plain.epsilon(1000) == plain.epsilon()
    assert DpSgd(noise_multiplier=2).epsilon() < plain.epsilon()
    assert DpSgd(noise_multiplier=0).epsilon() == math.inf


def test_dp_sgd_says_what_opacus_finds(step: ClientStepContext) -> None:
    pytest.importorskip("opacus")
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    other = ClientStepContext(step.exposure, model, step.batch, step.tape)
    with pytest.raises(ConfigError, match=r"(?s)dp_sgd.*BatchNorm cannot"):
        DpSgd().apply_gradient({}, other, draws())


def test_dp_sgd_refuses_several_local_steps(step: ClientStepContext) -> None:
    local = GradientExposure(
        step.exposure.normalisation, local=LocalSteps(2, 0.1, "sgd", 0.0)
    )
    other = ClientStepContext(local, step.model, step.batch, step.tape)
    with pytest.raises(ConfigError, match="one step of SGD"):
        DpSgd().apply_gradient({}, other, draws())


def test_dp_sgd_names_its_extra(
    step: ClientStepContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opacus", None)
    for part in ("accountants", "validators"):
        monkeypatch.setitem(sys.modules, f"opacus.{part}", None)
    with pytest.raises(MissingDependencyError, match=r"privaudit\[dp\]"):
        DpSgd().apply_gradient({}, step, draws())


class Pair(nn.Module):
    """Representation r = (x₀, 3·x₁, x₂ / 9) and a linear layer on it."""

    def __init__(self, linear: bool = True) -> None:
        super().__init__()
        self.factors = torch.tensor([1.0, 3.0, 1 / 9])
        self.classifier: nn.Module = nn.Linear(3, 2)
        if not linear:
            self.classifier = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))

    def forward(self, x: Tensor) -> Any:
        return self.classifier(x.flatten(1) * self.factors)


def test_soteria_prunes_where_little_of_the_image_moves_much() -> None:
    torch.manual_seed(0)
    # Normalised by (0.5, 0.25) these are 2, 1, 1; and ‖∂r_i/∂x‖ / |r_i| = 4 / x_i.
    images = torch.tensor([1.0, 0.75, 0.75]).view(1, 1, 1, 3)
    step = context(Pair(), images, [1])
    clean = step.exposure.gradient(step.model, step.batch, tape=step.tape)
    private = Soteria(ratio=0.34).apply_gradient(clean, step, draws())
    weight = private["classifier.weight"]
    assert not weight[:, 0].any()
    assert torch.equal(weight[:, 1:], clean["classifier.weight"][:, 1:])
    assert torch.equal(private["classifier.bias"], clean["classifier.bias"])
    assert clean["classifier.weight"][:, 0].all()


def test_soteria_names_what_stands_in_the_place_of_a_linear_layer() -> None:
    step = context(Pair(linear=False), torch.rand(1, 1, 1, 3), [1])
    clean = step.exposure.gradient(step.model, step.batch, tape=step.tape)
    with pytest.raises(ConfigError, match=r"last layer.*layer_norm"):
        Soteria().apply_gradient(clean, step, draws())
    with pytest.raises(ConfigError, match="no such layer"):
        Soteria(layer="head").apply_gradient(clean, step, draws())
    named = Soteria(layer="classifier.0").apply_gradient(clean, step, draws())
    assert not named["classifier.0.weight"].any(0).all()


def data(classes: int = 3) -> TrainData:
    images, labels = torch.rand(8, 1, 4, 4), torch.arange(8) % classes
    return TrainData(lambda: [(images, labels)], F.cross_entropy)


def test_precode_puts_its_module_before_the_classifier(
    step: ClientStepContext, network: nn.Module
) -> None:
    before = {n: p.clone() for n, p in network.named_parameters()}
    fitted = Precode(size=4, steps=0).fit(
        network, data(), exposure=step.exposure, generator=draws()
    )
    names = [n for n, _ in fitted.model.named_parameters()]
    assert names[2:] == [
        "4.0.encoder.weight", "4.0.encoder.bias", "4.0.decoder.weight",
        "4.0.decoder.bias", "4.1.weight", "4.1.bias",
    ]  # fmt: skip
    assert fitted.history == {}
    for name, value in network.named_parameters():
        assert torch.equal(value, before[name])
    own = context(fitted.model, step.batch.images, [0, 1, 2])
    clean = own.exposure.gradient(own.model, own.batch, tape=own.tape)
    untouched = fitted.defense.apply_gradient(clean, own, draws())
    assert all(torch.equal(untouched[n], clean[n]) for n in clean)
    assert [d.kind for d in own.tape if not d.is_mask] == ["noise: randn_like"]


def test_precode_draws_from_its_generator_only(
    step: ClientStepContext, network: nn.Module
) -> None:
    found, fixed = [], data()
    for world in (1, 2):
        torch.manual_seed(world)
        state = torch.get_rng_state()
        fitted = Precode(size=4, steps=3).fit(
            network, fixed, exposure=step.exposure, generator=draws(5)
        )
        assert torch.equal(torch.get_rng_state(), state)
        found.append(torch.cat([p.flatten() for p in fitted.model.parameters()]))
    assert torch.equal(*found)


def test_precode_trains(step: ClientStepContext, network: nn.Module) -> None:
    fixed = data()
    fitted = Precode(size=8, steps=300, learning_rate=1e-2).fit(
        network, fixed, exposure=step.exposure, generator=draws()
    )
    losses = [value for _, value in fitted.history["loss"]]
    assert losses[-1] < 0.7 * losses[0]


def test_precode_must_be_fitted(step: ClientStepContext) -> None:
    with pytest.raises(ConfigError, match="not fitted"):
        Precode().apply_gradient({}, step, draws())
    fitted = Precode(steps=0).fit(
        step.model, data(), exposure=step.exposure, generator=draws()
    )
    with pytest.raises(ConfigError, match="without the module"):
        fitted.defense.apply_gradient({}, step, draws())


def test_precode_says_what_it_lacks(step: ClientStepContext) -> None:
    empty = TrainData(list, F.cross_entropy)
    with pytest.raises(ConfigError, match="batches of images"):
        Precode(steps=1).fit(
            step.model, empty, exposure=step.exposure, generator=draws()
        )
    with pytest.raises(ConfigError, match="ends in a linear layer"):
        Precode(steps=0).fit(
            nn.Conv2d(1, 2, 3), empty, exposure=step.exposure, generator=draws()
        )
    features: Any = object()
    with pytest.raises(ConfigError, match="a defense of features"):
        Precode(steps=0).fit(step.model, empty, exposure=features, generator=draws())
