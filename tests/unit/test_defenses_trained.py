"""Defenses that are trained: who learns what, what is left, what is refused."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit._pixels import Normalisation
from privaudit.config import Split
from privaudit.defenses import Disco, NoPeek, TrainData
from privaudit.defenses._disco_training import Game, game
from privaudit.defenses._distance_correlation import (
    cosine,
    distance_correlation,
    euclidean,
)
from privaudit.defenses._task_head import pooled
from privaudit.errors import ConfigError
from privaudit.exposure import Cut, FeatureExposure, resolve
from privaudit.types import FeatureLayout
from tests.contract.feature_cases import feature_case, photographs, small_cnn


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def task(count: int = 32, size: int = 16, classes: int | None = None) -> TrainData:
    """Photographs; the label says how bright the image is."""
    images = photographs(count)
    brightness = images.mean((1, 2, 3))
    labels = (brightness > brightness.median()).long()

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, count, size):
            yield images[start : start + size], labels[start : start + size]

    return TrainData(batches, F.cross_entropy, classes)


def played(steps: int, *, reversal: float = 1.0, kind: str = "nchw") -> Game:
    """DISCO trained on a small model."""
    case = feature_case(kind)
    settings = Disco(
        ratio=0.5, steps=steps or 1, learning_rate=0.02, inverse_width=16,
        inverse_layers=1,
    )  # fmt: skip
    found, _ = game(
        settings, case.target.model, task(), case.target.exposure, generator=draws()
    )
    found.reversal = reversal
    if steps:
        found.run()
    return found


def held_out_error(found: Game) -> float:
    """Of the inverse network, on photographs that nobody learnt from."""
    images = photographs(64)[32:]
    with torch.no_grad():
        features = found.exposure.predict(found.model, images)
        drawn = found.inverse(found.kept(features) * features)
    return float((drawn - images).square().mean())


def test_the_reversed_gradient_raises_the_error_of_the_inverse_network() -> None:
    against, with_it = (held_out_error(played(100, reversal=r)) for r in (1.0, -1.0))
    assert against > 1.2 * with_it


def gradients(found: Game, module: nn.Module, value: Tensor) -> list[Tensor]:
    wanted = [p for p in module.parameters() if p.requires_grad]
    made: tuple[Tensor | None, ...] = torch.autograd.grad(
        value, wanted, retain_graph=True, allow_unused=True
    )
    return [g for g in made if g is not None]


@pytest.mark.parametrize("kind", ["tokens", "nchw"])
def test_who_gets_which_gradient(kind: str) -> None:
    found, helped = played(0, kind=kind), played(0, kind=kind, reversal=-1.0)
    images, labels = next(iter(task().batches()))
    losses, twin = found.losses(images, labels), helped.losses(images, labels)
    assert torch.allclose(losses["total"], twin["total"])

    def grads(game: Game, part: str, loss: Tensor) -> Tensor:
        made = gradients(game, getattr(game, part), loss)
        return torch.cat([g.flatten() for g in made])

    task_share = 0.95 * losses["task"]
    assert torch.allclose(
        grads(found, "model", losses["total"]), grads(found, "model", task_share)
    )
    assert torch.allclose(
        grads(found, "inverse", losses["total"]),
        grads(helped, "inverse", twin["reconstruction"]),
        atol=1e-6,
    )
    plain = grads(helped, "pruner", twin["reconstruction"])
    assert float(plain.norm()) > 1e-4
    assert torch.allclose(
        grads(found, "pruner", losses["total"]),
        grads(found, "pruner", task_share) - plain,
        atol=1e-6,
    )


def by_loops(x: Tensor, y: Tensor) -> float:
    """The definition, without any matrix."""
    count = len(x)

    def centred(v: Tensor) -> list[list[float]]:
        d = [[float((v[i] - v[j]).norm()) for j in range(count)] for i in range(count)]
        row = [sum(r) / count for r in d]
        mean = sum(row) / count
        each = range(count)
        return [[d[i][j] - row[i] - row[j] + mean for j in each] for i in each]

    a, b = centred(x.double()), centred(y.double())

    def product(u: list[list[float]], v: list[list[float]]) -> float:
        pairs = itertools.product(range(count), repeat=2)
        return sum(u[i][j] * v[i][j] for i, j in pairs) / count**2

    return float((product(a, b) / (product(a, a) * product(b, b)) ** 0.5) ** 0.5)


def test_distance_correlation_is_its_definition() -> None:
    x, noise = torch.randn(2, 9, 5, generator=draws()).unbind()
    y = x[:, :2] ** 2 + 0.3 * noise[:, :2]
    found = float(distance_correlation(euclidean(x), euclidean(y)))
    assert found == pytest.approx(by_loops(x, y), abs=1e-6)


def test_distance_correlation_sees_relations_that_are_not_linear() -> None:
    x, other = torch.randn(2, 400, 1, generator=draws()).unbind()
    bent = float(distance_correlation(euclidean(x), euclidean(x**2)))
    apart = float(distance_correlation(euclidean(x), euclidean(other)))
    assert bent > 0.4
    assert apart < 0.15


@pytest.mark.parametrize(
    "make", [lambda: torch.ones(6, 3), lambda: torch.eye(6)[[0] * 3 + [1] * 3]]
)
def test_equal_rows_have_gradients(make) -> None:  # type: ignore[no-untyped-def]
    values = make().requires_grad_(True)
    others = torch.randn(6, 4, generator=draws())
    found = distance_correlation(euclidean(others), euclidean(values))
    (gradient,) = torch.autograd.grad(found, values)
    assert bool(gradient.isfinite().all())


def test_cosine_distances_do_not_see_the_length_of_tokens() -> None:
    values = torch.randn(4, 3, 5, generator=draws())
    scaled = values * torch.rand(4, 3, 1, generator=draws(1))
    layout = FeatureLayout("tokens")
    assert torch.allclose(cosine(values, layout), cosine(scaled, layout), atol=1e-6)
    expected = 1 - F.cosine_similarity(values[0], values[1], dim=-1).mean()
    assert float(cosine(values, layout)[0, 1]) == pytest.approx(float(expected))
    maps = values.movedim(-1, 1)[..., None]
    by_map = cosine(maps, FeatureLayout("nchw"))
    assert torch.allclose(by_map, cosine(values, layout), atol=1e-6)


@pytest.mark.parametrize("informed", [False, True])
def test_nopeek_lowers_the_distance_correlation(informed: bool) -> None:
    case, last = feature_case("tokens"), []
    for weight in (50.0, 1e-6):
        defense = NoPeek(weight=weight, steps=40, learning_rate=0.02, informed=informed)
        fitted = defense.fit(
            case.target.model, task(), exposure=case.target.exposure, generator=draws()
        )
        curve = [value for _, value in fitted.history["distance correlation"]]
        last.append(curve[-1])
        assert curve[0] == pytest.approx(first_of(informed), abs=1e-5)
    assert last[0] < last[1] - 0.1


def first_of(informed: bool) -> float:
    """The distance correlation of the untrained model, on the first batch."""
    case = feature_case("tokens")
    images, _ = next(iter(task().batches()))
    with torch.no_grad():
        sent = case.target.exposure.predict(case.target.model, images)
    inputs = euclidean((images - 0.5) / 0.25)
    layout = case.target.exposure.layout
    seen = cosine(sent, layout) if informed else euclidean(sent)
    return float(distance_correlation(inputs, seen))


@pytest.mark.parametrize("defense", [Disco.tiny(), NoPeek.tiny()])
def test_what_trained_defenses_need(defense: Disco | NoPeek) -> None:
    case, data = feature_case("nchw"), task()
    model, exposure = case.target.model, case.target.exposure
    empty = TrainData(list, data.loss)
    with pytest.raises(ConfigError, match="anew at each call"):
        defense.fit(model, empty, exposure=exposure, generator=draws())
    bytes_ = [(255 * x, y) for x, y in data.batches()]
    with pytest.raises(ConfigError, match=r"floats in \[0, 1\]"):
        defense.fit(
            model, TrainData(lambda: bytes_, data.loss),
            exposure=exposure, generator=draws(),
        )  # fmt: skip
    nothing = TrainData(data.batches, lambda out, _: out.sum() * float("nan"))
    with pytest.raises(ConfigError, match="Lower learning_rate"):
        defense.fit(model, nothing, exposure=exposure, generator=draws())
    with pytest.raises(ConfigError, match="that was not"):
        defense.apply_features(torch.ones(1, 24, 8, 8), exposure.layout, draws())


def test_weights_that_break_in_the_last_step_are_refused() -> None:
    case, data = feature_case("nchw"), task()
    root = TrainData(
        data.batches, lambda out, _: out.sum() * 0 + out.sub(out).abs().sqrt().sum()
    )
    with pytest.raises(ConfigError, match="weights nan after 1 step"):
        NoPeek(steps=1).fit(
            case.target.model, root, exposure=case.target.exposure, generator=draws()
        )


def test_a_single_image_has_no_distances() -> None:
    case = feature_case("nchw")
    with pytest.raises(ConfigError, match="at least 4 image"):
        NoPeek.tiny().fit(
            case.target.model, task(size=2), exposure=case.target.exposure,
            generator=draws(),
        )  # fmt: skip


def test_a_task_of_other_classes_gets_a_head_of_its_own() -> None:
    case = feature_case("tokens")
    fitted = NoPeek(steps=2, probe_steps=60).fit(
        case.target.model, task(classes=2), exposure=case.target.exposure,
        generator=draws(),
    )  # fmt: skip
    probe = [value for _, value in fitted.history["head alone: total"]]
    assert probe[-1] < 0.9 * probe[0]
    assert fitted.model(photographs(3)).shape == (3, 2)
    assert case.target.model(photographs(3)).shape == (3, 10)


def test_a_model_without_a_head_gets_one() -> None:
    model = nn.Sequential(*list(small_cnn().children())[:5]).eval()
    exposure = FeatureExposure(Normalisation(), Cut("1"), FeatureLayout("nchw"))
    fitted = Disco.tiny().fit(
        model, task(classes=2), exposure=exposure, generator=draws()
    )
    assert fitted.model(photographs(3)).shape == (3, 2)
    again = copy.deepcopy(fitted.model)(photographs(3))
    assert torch.equal(again, fitted.model(photographs(3)))
    sent = exposure.predict(fitted.model, photographs(1))
    left = fitted.defense.apply_features(sent, exposure.layout, draws())
    assert left.shape == sent.shape
    assert not torch.equal(left, sent)


def test_a_cut_of_a_traced_graph_takes_no_added_head() -> None:
    from torchvision.models import resnet18

    with torch.random.fork_rng():
        model = resnet18().eval()
    model.fc = nn.Identity()
    images = photographs(1)
    cut = resolve(model, Split("layer1.0.add"), lambda: model(images))
    exposure = FeatureExposure(Normalisation(), cut, FeatureLayout("nchw"))
    with pytest.raises(ConfigError, match="can be given 2 outputs"):
        NoPeek.tiny().fit(model, task(classes=2), exposure=exposure, generator=draws())


def test_pooling_reads_any_output() -> None:
    tokens, maps = torch.rand(2, 3, 4), torch.rand(2, 4, 3, 3)
    assert torch.equal(pooled(tokens), tokens.mean(1))
    assert torch.equal(pooled([maps]), maps.mean((2, 3)))
    logits = torch.rand(2, 5)
    assert pooled({"last_hidden_state": tokens, "logits": logits}) is logits
    with pytest.raises(ConfigError, match="a tensor of floats"):
        pooled(torch.ones(2, 3, dtype=torch.long))


def test_modes_and_frozen_weights_come_back_on_the_copy() -> None:
    case = feature_case("nchw")
    model = copy.deepcopy(case.target.model).train()
    model.get_parameter("0.weight").requires_grad_(False)
    fitted = NoPeek.tiny().fit(
        model, task(), exposure=case.target.exposure, generator=draws()
    )
    assert all(m.training for m in fitted.model.modules())
    wants = {n: p.requires_grad for n, p in fitted.model.named_parameters()}
    assert wants == {n: n != "0.weight" for n in wants}
    kept, moved = (m.get_parameter("0.weight") for m in (model, fitted.model))
    assert torch.equal(kept, moved)
    assert not torch.equal(
        model.get_parameter("0.bias"), fitted.model.get_parameter("0.bias")
    )
