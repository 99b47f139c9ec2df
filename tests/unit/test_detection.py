"""Defenses are found by what they leave, and not where there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

from privaudit._pixels import Normalisation
from privaudit.defenses import (
    DEFENSES,
    Defense,
    Detection,
    Disco,
    FeatureEvidence,
    GaussianNoise,
    GradientClipping,
    GradientEvidence,
    GradientPruning,
    LaplaceNoise,
    Quantisation,
    RandomZeroing,
    SignSgd,
    Soteria,
    TokenDrop,
    TokenShuffle,
)
from privaudit.defenses._gradient_traces import round_bound, scattered_zeros
from privaudit.defenses._traces import lattice_bits
from privaudit.exposure import FeatureExposure, GradientExposure
from privaudit.exposure.client_step import defended
from privaudit.session.detecting import (
    found_in_features,
    found_in_gradient,
    known,
    stated,
)
from privaudit.session.stances import in_slots
from privaudit.types import Batch
from tests.contract.feature_cases import feature_case, photographs

IMAGES = photographs(6)
OTHERS = photographs(38)[6:]


class Scores(nn.Module):
    """Scores channels by chance, another way for each image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, sent: Tensor) -> Tensor:
        draws = torch.Generator().manual_seed(int(sent.abs().sum() * 1e4))
        return torch.randn(len(sent), self.channels, generator=draws)


def features(
    kind: str, defenses: Sequence[Defense], *, resent: bool = True
) -> dict[str, Detection]:
    case = feature_case(kind)
    exposure, model = case.target.exposure, case.target.model
    plain = exposure.predict(model, IMAGES[:1])

    def send(seed: int) -> Tensor:
        rows = []
        for i in range(len(IMAGES)):
            seen = exposure.observe(
                model, Batch(IMAGES[i : i + 1], None), defenses=defenses, seed=seed + i
            )
            rows.append(in_slots(seen, plain.shape, exposure.layout).features)
        return torch.cat(rows)

    with torch.no_grad():
        reference = exposure.predict(model, OTHERS)
    again = send(1000) if resent else None
    seen = FeatureEvidence(send(0), again, reference, exposure.layout)
    return {d.defense: d for d in found_in_features(seen) if d.found}


@pytest.mark.parametrize("resent", [True, False])
@pytest.mark.parametrize("kind", ["tokens", "nchw", "vector"])
def test_nothing_is_found_where_nothing_is(kind: str, resent: bool) -> None:
    assert features(kind, [], resent=resent) == {}


@pytest.mark.parametrize(
    ("defense", "name", "value"),
    [
        (RandomZeroing(ratio=0.2), "ratio", 0.2),
        (GaussianNoise(noise_std=0.01), "noise_std", 0.01),
        (LaplaceNoise(noise_std=0.03), "noise_std", 0.03),
        (Quantisation(bits=8), "bits", 8.0),
        (Quantisation(bits=3), "bits", 3.0),
    ],
)
@pytest.mark.parametrize("kind", ["tokens", "nchw"])
def test_noise_zeros_and_levels(
    kind: str, defense: Defense, name: str, value: float
) -> None:
    found = features(kind, [defense])
    assert set(found) == {defense.name}
    wanted = value
    if kind == "nchw" and name == "ratio":
        wanted = found[defense.name].estimate[name]  # its own zeros stay zero
        assert 0.1 < wanted < 0.25
    assert found[defense.name].estimate[name] == pytest.approx(wanted, rel=0.1)


def test_a_shuffle_is_seen_by_sending_again() -> None:
    assert set(features("tokens", [TokenShuffle()])) == {"token_shuffle"}


def test_dropped_tokens_are_counted_and_are_no_shuffle() -> None:
    found = features("tokens", [TokenDrop(ratio=0.5)])
    assert set(found) == {"token_drop"}
    assert found["token_drop"].estimate["ratio"] == pytest.approx(0.5)


def test_shuffled_and_noised() -> None:
    both = [TokenShuffle(), GaussianNoise(noise_std=0.05)]
    found = features("tokens", both)
    assert set(found) == {"token_shuffle", "gaussian_noise"}
    noise = found["gaussian_noise"].estimate["noise_std"]
    assert noise == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize("resent", [True, False])
def test_pruned_channels(resent: bool) -> None:
    found = features(
        "tokens", [Disco(ratio=0.3).with_pruner(Scores(96))], resent=resent
    )
    assert set(found) == {"disco"}
    assert found["disco"].estimate["ratio"] == pytest.approx(0.3, abs=0.1)


def mlp(p: float = 0.0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(768, 48), nn.Sigmoid(), nn.Dropout(p),
            nn.Linear(48, 4),
        )  # fmt: skip


def zero_head() -> nn.Module:
    model = mlp()
    nn.init.zeros_(model[4].weight)  # type: ignore[index]
    return model


def gradients(
    defenses: Sequence[Defense],
    *,
    resent: bool = True,
    clients: int = 3,
    model: nn.Module | None = None,
) -> dict[str, Detection]:
    model = model or mlp()
    exposure = GradientExposure(Normalisation((0.5,), (0.25,)))
    batches = [Batch(IMAGES[i : i + 1], torch.tensor([i % 4])) for i in range(clients)]
    steps = [exposure.observe(model, b, seed=i) for i, b in enumerate(batches)]

    def send(number: int, seed: int) -> Mapping[str, Tensor]:
        return defended(
            steps[number], defenses, exposure=exposure, model=model,
            batch=batches[number], seed=seed,
        ).observation.gradients  # fmt: skip

    own = exposure.observe(
        model, Batch(OTHERS[:1], torch.tensor([0])), seed=9
    ).clean.gradients
    again = send(0, 99) if resent else None
    seen = GradientEvidence([send(i, i) for i in range(clients)], again, own, model)
    return {d.defense: d for d in found_in_gradient(seen) if d.found}


@pytest.mark.parametrize("resent", [True, False])
@pytest.mark.parametrize("clients", [1, 3])
def test_a_plain_gradient_shows_nothing(resent: bool, clients: int) -> None:
    assert gradients([], resent=resent, clients=clients) == {}


@pytest.mark.parametrize(
    ("defense", "estimate"),
    [
        (GaussianNoise(noise_std=0.03), {"noise_std": 0.03}),
        (LaplaceNoise(noise_std=0.1), {"noise_std": 0.1}),
        (GradientPruning(ratio=0.2), {"ratio": 0.2}),
        (GradientPruning(ratio=0.99), {"ratio": 0.99}),
        (Quantisation(bits=8), {"bits": 8}),
        (GradientClipping(max_norm=0.01), {"max_norm": 0.01}),
        (SignSgd(), {}),
        (Soteria(ratio=0.8), {"ratio": 0.8}),
    ],
)
def test_defenses_of_gradients(defense: Defense, estimate: dict[str, float]) -> None:
    found = gradients([defense])
    assert defense.name in found
    for name, value in estimate.items():
        assert found[defense.name].estimate[name] == pytest.approx(value, rel=0.15)
    others = set(found) - {defense.name}
    # Zeroed columns are zeros where units are alive: pruning explains them as well.
    assert others <= ({"gradient_pruning"} if defense.name == "soteria" else set())


@pytest.mark.parametrize("p", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("clients", [1, 3])
def test_dropped_units_are_no_defense_of_the_last_layer(p: float, clients: int) -> None:
    assert gradients([], model=mlp(p), clients=clients) == {}


def test_norms_that_are_always_alike_are_no_clipping() -> None:
    assert "gradient_clipping" not in gradients([], model=zero_head())


def test_one_clipped_client_shows_by_a_round_norm() -> None:
    found = gradients([GradientClipping(max_norm=0.01)], clients=1)
    assert 0.5 <= found["gradient_clipping"].confidence < 1


def test_round_numbers() -> None:
    assert round_bound(1.0) == 1.0
    assert round_bound(2.5000001) == pytest.approx(2.5)
    assert round_bound(0.05) == pytest.approx(0.05)
    assert round_bound(1.2345) is None
    assert round_bound(0.0) is None


def test_dead_units_and_black_pixels_are_no_pruning() -> None:
    weight = torch.ones(10, 20)
    weight[3] = 0
    weight[:, 5:9] = 0
    assert scattered_zeros({"w": weight}) == 0
    weight[0, 0] = 0
    assert scattered_zeros({"w": weight}) == pytest.approx(1 / (9 * 16))


def test_levels_are_told_from_other_values() -> None:
    draws = torch.Generator().manual_seed(0)
    values = torch.randn(4000, generator=draws)
    assert lattice_bits(values) is None
    for bits in (2, 4, 8, 11):
        step = (values.max() - values.min()) / (2**bits - 1)
        rounded = values.min() + ((values - values.min()) / step).round() * step
        assert lattice_bits(rounded) == pytest.approx(bits, abs=0.02)


def test_what_was_stated_gets_the_estimates_that_it_lacks() -> None:
    seen = Detection(
        defense="disco", confidence=0.9, evidence="some are silent",
        estimate={"ratio": 0.25, "more": 1.0},
    )  # fmt: skip
    doubt = Detection(defense="sign", confidence=0.2, evidence="hardly")
    other = Detection(defense="token_shuffle", confidence=1.0, evidence="turned")
    found = known(stated([Disco(ratio=0.1)]), [seen, doubt, other])
    assert [d.defense for d in found] == ["disco", "token_shuffle"]
    assert found[0].estimate["ratio"] == 0.1
    assert found[0].estimate["more"] == 1.0
    assert "some are silent" in found[0].evidence


def test_every_detection_names_its_own_defense() -> None:
    case = feature_case("tokens")
    exposure: FeatureExposure = case.target.exposure
    with torch.no_grad():
        own = exposure.predict(case.target.model, OTHERS)
    seen = FeatureEvidence(own[:4], own[:4], own, exposure.layout)
    for name, cls in DEFENSES.items():
        look = cls.detect_features(seen)
        assert look is None or look.defense == name
