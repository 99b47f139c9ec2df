"""A search in a generator's latents: what is asked of it, and of its generator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from privaudit.attacks import Glass
from privaudit.attacks._style_search import divergence
from privaudit.attacks.base import INTERRUPTED
from privaudit.config import Budget
from privaudit.errors import ConfigError
from privaudit.types import Batch, Reconstruction
from tests.contract.feature_cases import SHAPE, FeatureCase, feature_case

SHORT = Budget(seconds=120, restarts=1)


class Toy(nn.Module):
    """z → two styles → smooth colours of 8×8; with classes where there are some."""

    def __init__(self, classes: int = 0, channels: int = 3) -> None:
        super().__init__()
        self.z_dim, self.num_ws = 6, 2
        if classes:
            self.embed = nn.Embedding(classes, 4)
        self.map = nn.Linear(6 + 4 * bool(classes), 8)
        self.coarse = nn.Linear(8, channels * 16)
        self.fine = nn.Linear(8, channels * 64)
        self.channels = channels

    def mapping(self, z: Tensor, c: Tensor | None = None) -> Tensor:
        return torch.tanh(self.map(z if c is None else torch.cat([z, c], 1)))

    def synthesis(self, w: Tensor) -> Tensor:
        coarse = self.coarse(w[:, 0]).view(-1, self.channels, 4, 4)
        fine = self.fine(w[:, 1]).view(-1, self.channels, 8, 8)
        wide = nn.functional.interpolate(coarse, scale_factor=2.0)
        return torch.tanh(wide + 0.3 * fine)


def toy(classes: int = 0, channels: int = 3) -> Toy:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Toy(classes, channels)


def given(case: FeatureCase, gan: object) -> FeatureCase:
    target = replace(case.target, priors={"gan": gan}, memory={})
    return replace(case, target=target)


def run(
    case: FeatureCase,
    attack: Glass | None = None,
    budget: Budget = SHORT,
    *,
    rows: slice = slice(None),
    seed: int = 0,
) -> list[Reconstruction]:
    part = replace(case.observation, features=case.observation.features[rows])
    drawn = torch.Generator().manual_seed(seed)
    attack = attack or Glass(iterations=60)
    return attack.run(case.target, part, budget=budget, generator=drawn)


@pytest.fixture
def case() -> FeatureCase:
    return given(feature_case("nchw"), toy())


def test_without_a_generator_it_is_skipped_and_says_what_is_missing() -> None:
    for one in run(feature_case("nchw")):
        assert (one.state, one.images) == ("skipped", None)
        assert "no generator was handed over; pass priors={'gan'" in one.reason


@pytest.mark.parametrize("kind", ["tokens", "nchw", "vector"])
def test_it_finds_what_its_generator_drew(kind: str) -> None:
    gan, start = toy(), feature_case(kind)
    with torch.no_grad():
        styles = torch.randn(2, 2, 8, generator=torch.Generator().manual_seed(3))
        images = (gan.synthesis(styles / 2) + 1) / 2
        images = nn.functional.interpolate(images, SHAPE[1:], mode="bilinear")
    case = given(FeatureCase(start.target, Batch(images, None)), gan)
    found = run(case, Glass(iterations=600, learning_rate=0.05))
    for index, one in enumerate(found):
        assert one.images is not None
        assert float((one.images[0] - images[index]).abs().mean()) < 0.06
        assert one.search is not None
        assert one.search.loss_final < 0.1 * one.search.loss_start
        assert one.form == "latent search"


def test_each_image_is_searched_as_if_it_were_alone(case: FeatureCase) -> None:
    both = run(case)
    for index in range(2):
        (alone,) = run(case, rows=slice(index, index + 1))
        assert alone.images is not None
        beside = both[index].images
        assert beside is not None
        assert torch.allclose(alone.images, beside, atol=1e-4)


def test_another_seed_is_another_search(case: FeatureCase) -> None:
    one, other = run(case)[0], run(case, seed=1)[0]
    assert one.images is not None
    assert other.images is not None
    assert not torch.allclose(one.images, other.images, atol=1e-2)


def test_the_best_of_its_restarts_is_the_answer(case: FeatureCase) -> None:
    budget = Budget(seconds=120, restarts=3)
    several, one = run(case, budget=budget)[0], run(case)[0]
    assert several.search is not None
    assert one.search is not None
    assert several.search.restarts == 3
    assert several.search.iterations == 3 * one.search.iterations
    assert several.search.loss_final <= one.search.loss_final * 1.05


def test_the_styles_go_on_where_z_ended(case: FeatureCase) -> None:
    on_z = run(case, Glass(iterations=101, z_share=0.99, learning_rate=0.05))[0]
    both = run(case, Glass(iterations=200, z_share=0.5, learning_rate=0.05))[0]
    assert on_z.search is not None
    assert both.search is not None
    assert both.search.loss_start == on_z.search.loss_start
    assert both.search.loss_final < 0.95 * on_z.search.loss_final
    steps = [at for at, _ in both.search.curve]
    assert steps == sorted(set(steps))
    assert steps[-1] == 200
    assert both.search.unknowns == 2 * 8


def test_budgets_hold_for_both_stages_together(case: FeatureCase) -> None:
    one = run(case, Glass(iterations=400), Budget(seconds=60, iterations=30))[0]
    assert one.search is not None
    assert one.search.iterations == 30
    assert one.state == "stopped"
    assert "the budget allows no more than 30" in one.reason
    least = run(case, Glass(iterations=400), Budget(seconds=60, iterations=1))[0]
    assert least.search is not None
    assert least.search.iterations == 1
    late = run(case, Glass(iterations=10**6, give_up=10**6), Budget(seconds=0.5))[0]
    assert (late.state, late.images is None) == ("stopped", False)
    assert "the time was up" in late.reason


@pytest.mark.parametrize("at", [8, 40])
def test_ctrl_c_keeps_what_was_found(case: FeatureCase, at: int) -> None:
    gan, draw, calls = toy(), Toy.synthesis, []

    def interrupted(w: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return draw(gan, w)

    gan.synthesis = interrupted  # type: ignore[method-assign]
    for one in run(given(case, gan)):
        assert (one.state, one.reason) == ("stopped", INTERRUPTED)
        assert one.images is not None


def test_a_generator_with_classes_gets_their_embedding() -> None:
    case = feature_case("nchw")
    seen: list[Tensor] = []
    gan, mapping = toy(classes=5), Toy.mapping

    def recorded(z: Tensor, c: Tensor | None = None) -> Tensor:
        assert c is not None
        seen.append(c.detach().clone())
        return mapping(gan, z, c)

    gan.mapping = recorded  # type: ignore[method-assign]
    found = run(given(case, gan), Glass(iterations=200, learning_rate=0.05))
    middle = gan.embed.weight.detach().mean(0)
    assert torch.allclose(seen[0], middle.expand_as(seen[0]), atol=1e-6)
    assert float((searched(seen)[-1] - middle).abs().max()) > 0.05
    assert all(r.images is not None for r in found)


def test_without_an_embedding_a_class_is_its_share() -> None:
    class Shares(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.num_classes = 4
            self.by_class = nn.Linear(4, 6)

        def mapping(self, z: Tensor, c: Tensor | None = None) -> Tensor:
            assert c is not None
            assert torch.allclose(c.sum(1), torch.ones(len(c)))
            return super().mapping(z + self.by_class(c))

    assert all(r.images is not None for r in run(given(feature_case("nchw"), Shares())))


def test_the_divergence_is_that_of_two_normals() -> None:
    z = 0.5 + 2 * torch.randn(3, 50)
    for row, found in zip(z, divergence(z), strict=True):
        mean, std = float(row.mean()), float(row.std(unbiased=False))
        own, usual = (
            torch.distributions.Normal(m, s) for m, s in ((mean, std), (0, 1))
        )
        wanted = torch.distributions.kl_divergence(own, usual)
        assert float(found) == pytest.approx(float(wanted), rel=1e-4)


def test_the_divergence_keeps_z_where_the_generator_was_trained(
    case: FeatureCase,
) -> None:
    far = {}
    for weight in (0.0, 30.0):
        attack = Glass(
            iterations=400, z_share=0.99, learning_rate=0.2, kl_weight=weight
        )
        seen: list[Tensor] = []
        gan, mapping = toy(), Toy.mapping

        def recorded(
            z: Tensor,
            c: Tensor | None = None,
            *,
            kept: list[Tensor] = seen,
            own: Toy = gan,
            call: Callable[..., Tensor] = mapping,
        ) -> Tensor:
            kept.append(z.detach().clone())
            return call(own, z, c)

        gan.mapping = recorded  # type: ignore[method-assign]
        run(given(case, gan), attack)
        far[weight] = float(divergence(searched(seen)[-1]).mean())
    assert far[30.0] < 0.5 * far[0.0]


def searched(seen: list[Tensor]) -> list[Tensor]:
    """Without what was drawn to try the generator, and to show what it draws."""
    return [some for some in seen if len(some) == 2]


class Broken(Toy):
    """A generator with one thing wrong."""

    def __init__(self, **wrong: object) -> None:
        super().__init__()
        for name, value in wrong.items():
            setattr(self, name, value)


def flat(w: Tensor) -> Tensor:
    return w.flatten(1)


def noisy(w: Tensor) -> Tensor:
    return torch.rand(len(w), 3, 8, 8)


def bytes_of(w: Tensor) -> Tensor:
    return torch.full((len(w), 3, 8, 8), 200.0)


def refuses(w: Tensor) -> Tensor:
    raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


@pytest.mark.parametrize(
    ("gan", "words"),
    [
        (3, r"path\.py:factory.*int"),
        (nn.Linear(2, 2), "Linear without mapping"),
        (Broken(z_dim=None), "z_dim.*None"),
        (Broken(num_ws=None), r"shape \(4, 8\), num_ws None"),
        (Broken(synthesis=flat), r"images of shape \(4, C, H, W\).*shape \(4, 16\)"),
        (Broken(synthesis=noisy), "the same image.*noise_mode"),
        (Broken(synthesis=bytes_of), r"in \[-1, 1\].*from 200"),
        (Broken(synthesis=refuses), "that run.*mat1 and mat2"),
        (Broken(embed=nn.Embedding(3, 4), num_classes=7), "num_classes 7"),
        (Broken(embed=nn.ReLU()), "embed, an nn.Embedding.*ReLU"),
        (toy(channels=1), r"3 channel\(s\).*1 channel\(s\)"),
        ("nowhere.py:build", r"priors\['gan'\]"),
        ("no-colon", r"priors\['gan'\].*no-colon"),
    ],
)
def test_what_is_no_generator_for_these_images_is_refused(
    gan: object, words: str
) -> None:
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        run(given(feature_case("nchw"), gan))


def test_a_generator_is_built_by_a_named_function(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from tests.unit.test_glass import toy\n")
    case = feature_case("nchw")
    by_name, by_hand = run(given(case, f"{file}:toy")), run(given(case, toy()))
    assert by_name[0].images is not None
    assert by_hand[0].images is not None
    assert torch.equal(by_name[0].images, by_hand[0].images)


def test_the_generator_is_left_as_it_was(case: FeatureCase) -> None:
    gan = toy().train()
    run(given(case, gan))
    assert gan.training
    assert all(p.requires_grad and p.grad is None for p in gan.parameters())


def test_images_on_another_range_are_pointed_out(case: FeatureCase) -> None:
    gan = toy()
    gan.synthesis = lambda w: (Toy.synthesis(gan, w) + 1) / 2  # type: ignore[method-assign]
    assert "below 0" in " ".join(run(given(case, gan))[0].notes)
    assert not run(case)[0].notes
