"""``closed_form`` at the edges: odd images, odd models, and refusals with a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from privaudit import Auditor, Client
from privaudit._controls import shipped_images
from privaudit._pixels import Normalisation
from privaudit._runner import Client as Victim
from privaudit._runner import Clock, run
from privaudit.attacks import ClosedForm
from privaudit.attacks._forms import EXACT
from privaudit.config import Budget
from privaudit.exposure import GradientExposure
from privaudit.types import AttackerKnowledge, Batch, Reconstruction, Target
from tests.models.vit import SmallViT, small_vit

BIAS = "first linear layer with bias"
NO_BIAS = "first linear layer without bias"
POSITION = "patch embedding with learned position embedding"
ATTENTION = "first attention projection"
ALL = (BIAS, NO_BIAS, POSITION, ATTENTION)
SHAPE = (3, 16, 16)
NORMAL = Normalisation((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))


def photo(shape: tuple[int, int, int] = SHAPE, count: int = 1) -> Tensor:
    return shipped_images(count + 1, shape)[1:]


def perceptron(
    *,
    bias: bool = True,
    p: float = 0.5,
    act: Callable[[], nn.Module] = nn.GELU,
    classes: int = 10,
    shape: tuple[int, int, int] = SHAPE,
) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(shape[0] * shape[1] * shape[2], 64, bias=bias),
            act(), nn.Dropout(p), nn.Linear(64, 32, bias=bias),
            act(), nn.Dropout(p), nn.Linear(32, classes, bias=bias),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Found:
    """What came back, and the truth."""

    truth: Tensor
    outcome: Reconstruction

    def why(self, form: str) -> str:
        return next(f.reason for f in self.outcome.forms if f.form == form)


def attack(
    model: nn.Module,
    images: Tensor | None = None,
    labels: Tensor | None = None,
    exposure: GradientExposure | None = None,
    forms: tuple[str, ...] = (),
) -> Found:
    """One client's step, attacked and its claim checked, as an audit does."""
    images = photo() if images is None else images
    labels = torch.arange(3, 3 + len(images)) if labels is None else labels
    exposure = exposure or GradientExposure(NORMAL)
    if exposure.normalisation.mean is not None and images.shape[1] == 1:
        exposure = GradientExposure(Normalisation((0.5,), (0.25,)))
    batch = Batch(images, labels)
    victim = Victim(batch, exposure.observe(model, batch, seed=0), range(len(images)))
    attack = ClosedForm.model_validate({"forms": forms} if forms else {})
    target = Target(model, exposure, AttackerKnowledge())
    ran = run(
        attack, target, [victim], labels_known=True, clock=Clock(Budget()), seed=0
    )
    return Found(images, ran.outcomes[0])


def is_exact(found: Found, form: str, tolerance: float = 1e-3) -> None:
    assert found.outcome.state == "exact", found.outcome.reason
    assert found.outcome.form == form
    assert found.outcome.residual is not None
    assert found.outcome.residual < EXACT
    assert found.outcome.images is not None
    assert float((found.outcome.images - found.truth).abs().max()) < tolerance


def is_refused(found: Found, **reasons: str) -> None:
    """No form applies, each says why, and nothing is shown as a reconstruction."""
    assert found.outcome.state == "skipped"
    assert found.outcome.images is None
    assert found.outcome.reason == "no form applies"
    assert {f.form for f in found.outcome.forms} == set(ALL)
    assert not any(f.applied for f in found.outcome.forms)
    names = {"bias": BIAS, "no_bias": NO_BIAS, "position": POSITION, "attn": ATTENTION}
    for key, reason in reasons.items():
        assert reason in found.why(names[key])


def never_clears(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """The whole audit says neither "leaks" nor "no leak found"."""
    verdict = Auditor(model, attacks=["closed_form"]).audit((images, labels)).verdict
    assert verdict.word not in ("leaks", "no leak found")


# odd images

IMAGES: dict[str, Callable[[], Tensor]] = {
    "photograph": photo,
    "black": lambda: torch.zeros(1, *SHAPE),
    "white": lambda: torch.ones(1, *SHAPE),
    "constant": lambda: torch.full((1, *SHAPE), 0.3),
    "saturated": lambda: (photo() > 0.5).float(),
    "low contrast": lambda: 0.5 + 0.002 * (photo() - 0.5),
    "dark": lambda: photo() * 0.004,
    "one pixel": lambda: F.one_hot(torch.tensor([77]), 768).view(1, *SHAPE).float(),
}


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("normal", [NORMAL, Normalisation()], ids=["normal", "plain"])
@pytest.mark.parametrize("form", [BIAS, NO_BIAS, POSITION])
def test_odd_images(image: str, normal: Normalisation, form: str) -> None:
    truth = IMAGES[image]()
    vit = form == POSITION
    model = small_vit() if vit else perceptron(bias=form == BIAS)
    found = attack(model, truth, exposure=GradientExposure(normal))
    if form == NO_BIAS and image == "black" and normal.mean is None:
        # GELU(0) = 0: this image reaches no parameter at all.
        assert found.outcome.state == "failed"
        assert "no information" in found.outcome.reason
        return
    is_exact(found, form)


@pytest.mark.parametrize("image", ["photograph", "black", "white", "saturated"])
def test_odd_images_through_attention(image: str) -> None:
    model = small_vit(position="frozen", p_embed=0.0)
    found = attack(model, IMAGES[image](), exposure=GradientExposure(Normalisation()))
    is_exact(found, ATTENTION)


@pytest.mark.parametrize("shape", [(1, 16, 16), (1, 20, 12), (3, 8, 28), (5, 12, 12)])
@pytest.mark.parametrize("bias", [True, False])
def test_any_channels_and_sides(shape: tuple[int, int, int], bias: bool) -> None:
    exposure = GradientExposure(Normalisation((0.5,), (0.25,)))
    model = perceptron(bias=bias, shape=shape)
    is_exact(attack(model, photo(shape), exposure=exposure), BIAS if bias else NO_BIAS)


# what models do before their first layer


class Front(nn.Module):
    """A function in front of a model."""

    def __init__(self, front: Callable[[Tensor], Tensor], model: nn.Module) -> None:
        super().__init__()
        self.front, self.model = front, model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(self.front(x))  # type: ignore[no-any-return]


MIX = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]])
FRONTS: dict[str, Callable[[Tensor], Tensor]] = {
    "normalises": lambda x: (x - 0.48) / 0.27,
    "transposes": lambda x: x.permute(0, 1, 3, 2),
    "cuts into patches": lambda x: (
        x.reshape(-1, 3, 4, 4, 4, 4).permute(0, 2, 4, 1, 3, 5).reshape(-1, 3, 16, 16)
    ),
    "clamps": lambda x: x.clamp(0, 1).flip(-1),
    "scales to 255": lambda x: x * 255 - 127,
    "mixes channels": lambda x: torch.einsum("dc,bchw->bdhw", MIX, x),
    "pads and crops": lambda x: F.pad(x, (2, 2, 2, 2), "reflect")[..., 2:-2, 2:-2],
}


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("form", [BIAS, NO_BIAS, POSITION])
def test_sees_through_what_a_model_does_first(front: str, form: str) -> None:
    inner = small_vit() if form == POSITION else perceptron(bias=form == BIAS)
    found = attack(
        Front(FRONTS[front], inner), exposure=GradientExposure(Normalisation())
    )
    is_exact(found, form)


def test_a_curved_map_in_front_is_refused() -> None:
    reason = "not an affine function of the image"
    found = attack(Front(torch.sqrt, perceptron()), exposure=plain())
    is_refused(found, bias=reason)
    found = attack(Front(torch.square, small_vit()), exposure=plain())
    is_refused(found, position=reason)


def plain() -> GradientExposure:
    return GradientExposure(Normalisation())


def test_pixels_that_no_layer_sees_are_no_reconstruction() -> None:
    """What was matched exactly is a part of the image; the rest was never sent."""
    blind = Front(lambda x: x * (torch.arange(16) < 4), perceptron())
    found = attack(blind, exposure=plain())
    assert found.outcome.state == "failed"
    assert "does not determine the image" in found.outcome.reason
    never_clears(blind, photo(), torch.tensor([3]))


# transformers


@pytest.mark.parametrize(
    "settings",
    [
        {"channels": 1}, {"height": 32}, {"bias": False}, {"tokens": "mean"},
        {"registers": 3}, {"linear": True}, {"separate": True},
        {"patch": 6, "stride": 2}, {"stride": 2, "padding": 1}, {"p": 0.0},
    ],
    ids=str,
)  # fmt: skip
def test_position_embedding(settings: dict[str, object]) -> None:
    model = small_vit(**settings)
    kind = model.kind
    image = photo((kind.channels, kind.height, kind.width))
    is_exact(attack(model, image), POSITION)


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize(
    "settings",
    [
        {}, {"linear": True}, {"separate": True}, {"registers": 3}, {"bias": False},
        {"tokens": "mean"}, {"channels": 1},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("affine", [False, True], ids=["fresh norm", "affine norm"])
def test_attention(settings: dict[str, object], p: float, affine: bool) -> None:
    model = small_vit(position="frozen", p_embed=0.0, p=p, **settings)
    if affine:
        norm = model.first_layer.norm1
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            norm.weight.add_(0.2 * torch.randn(norm.weight.shape, generator=generator))
            norm.bias.add_(0.2 * torch.randn(norm.bias.shape, generator=generator))
    found = attack(model, photo((model.kind.channels, 16, 16)))
    is_exact(found, ATTENTION)


def test_a_frozen_projection_leaves_the_others() -> None:
    model = small_vit(position="frozen", p_embed=0.0, separate=True)
    model.first_layer.attention.parts[2].requires_grad_(False)
    is_exact(attack(model), ATTENTION)
    for part in model.first_layer.attention.parts:
        part.requires_grad_(False)
    assert "not shared" in attack(model).why(ATTENTION)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_smooth_positions_leave_directions_open_and_it_says_so(p: float) -> None:
    """Sine and cosine positions are linear in each other: not exact, never claimed."""
    found = attack(small_vit(position="sincos", p_embed=0.0, p=p))
    assert found.outcome.state == "plateau"
    assert "approximate" in found.why(ATTENTION)


def test_more_patches_than_equations_are_approximate() -> None:
    found = attack(small_vit(patch=2, stride=2, size=32))
    assert found.outcome.state == "plateau"
    assert "approximate: 64 patches, 32 equations" in found.why(POSITION)
    found = attack(small_vit(position="frozen", p_embed=0.0, size=48))
    is_refused(found, attn="48 unknowns a patch, but only 48 - 17 - 1 equations")


def test_dropout_before_the_position_is_seen_not_claimed() -> None:
    found = attack(small_vit(p_patch=0.5, p_embed=0.0))
    assert found.outcome.state == "plateau"
    assert "do not fit" in found.why(POSITION)


def test_dropout_behind_the_embedding_stops_attention_only() -> None:
    found = attack(small_vit(position="sincos"))
    is_refused(found, attn="dropout (drop#0) acts between embedding and layers.0.norm1")


# refusals


def test_a_frozen_first_layer() -> None:
    model = perceptron()
    model[1].weight.requires_grad_(False)
    is_refused(attack(model), bias="the weight of 1 is not shared")
    model[1].requires_grad_(False)
    is_refused(attack(model), bias="not shared", no_bias="not shared")
    never_clears(model, photo(), torch.tensor([3]))
    vit = small_vit()
    vit.patch.requires_grad_(False)
    is_refused(attack(vit), position="the weight of patch is not shared")


def test_a_frozen_bias_is_as_good_as_none() -> None:
    model = perceptron()
    model[1].bias.requires_grad_(False)
    found = attack(model)
    is_exact(found, NO_BIAS)
    assert found.why(BIAS) == "the bias of 1 is not shared"


class Twice(nn.Module):
    """Uses its first layer on the image and on its mirror image."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(768, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.layer(x.flatten(1)), self.layer(x.flip(-1).flatten(1))
        return self.head(a.tanh() + b.relu())  # type: ignore[no-any-return]


class Tied(nn.Module):
    """Its first layer is also its decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(768, 32, bias=False), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(x.flatten(1)).tanh()
        back = hidden @ self.layer.weight
        out: Tensor = self.head(hidden) + back.mean(1, keepdim=True)
        return out


class PatchTwice(SmallViT):
    def forward(self, x: Tensor) -> Tensor:
        again = self.patch(x.flip(-1)).mean((2, 3))[:, :10]
        out: Tensor = super().forward(x) + again
        return out


@pytest.mark.parametrize("build", [Twice, Tied])
def test_a_first_layer_used_twice(build: type[nn.Module]) -> None:
    reason = "the weight of layer is used more than once"
    is_refused(attack(build()), bias=reason, no_bias=reason)
    never_clears(build(), photo(), torch.tensor([3]))


def test_a_patch_embedding_used_twice() -> None:
    model = PatchTwice(small_vit(p_embed=0.0).kind)
    reason = "the weight of patch is used more than once"
    is_refused(attack(model), position=reason, attn=reason)


@pytest.mark.parametrize(
    "drop",
    [
        lambda x: F.dropout(x, 0.3),
        lambda x: F.dropout(x, 0.3) * 2 - 1,
        lambda x: F.dropout(x, 0.002),
        lambda x: F.dropout2d(x, 0.3),
        lambda x: F.dropout(x, 1.0),
    ],
    ids=["plain", "then affine", "rare", "channels", "all"],
)
def test_dropout_on_the_input(drop: Callable[[Tensor], Tensor]) -> None:
    reason = "dropout (Front#0) acts on the input of model"
    for bias in (True, False):
        found = attack(Front(drop, perceptron(bias=bias)), exposure=plain())
        is_refused(found, **{"bias" if bias else "no_bias": reason})
    found = attack(Front(drop, small_vit()), exposure=plain())
    is_refused(found, position=reason, attn=reason)
    never_clears(Front(drop, perceptron()), photo(), torch.tensor([3]))


def test_noise_on_the_input_is_caught_by_the_check_of_the_claim() -> None:
    noisy = Front(lambda x: x + 0.3 * torch.randn_like(x), perceptron())
    found = attack(noisy, exposure=plain())
    assert found.outcome.state == "failed"
    assert "another gradient" in found.outcome.reason


def test_a_batch_of_two() -> None:
    reason = "needs a batch of 1, got 2"
    images = photo(count=2)
    is_refused(attack(perceptron(), images), bias=reason)
    is_refused(attack(perceptron(bias=False), images), no_bias=reason)
    is_refused(attack(small_vit(), images), position=reason, attn=reason)
    never_clears(perceptron(), images, torch.tensor([1, 2]))


def test_a_convolution_first() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(1024, 10)
    )
    is_refused(attack(model), bias="is conv2d, not linear", no_bias="not linear")


def test_a_model_without_a_call_that_is_seen_breaks_in_words() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(768, 10))

        def forward(self, x: Tensor) -> Tensor:
            return torch.einsum("bi,ij->bj", x.flatten(1), self.weight.clone())

    found = attack(Bare())
    assert found.outcome.state in ("failed", "skipped")
    assert found.outcome.reason
    never_clears(Bare(), photo(), torch.tensor([3]))


def test_no_form_at_all_is_refused_as_a_setting() -> None:
    with pytest.raises(ValidationError, match="at least 1 item"):
        ClosedForm(forms=())


@pytest.mark.parametrize("form", ["first_linear", "first_linear_no_bias"])
def test_only_the_forms_asked_for_are_tried(form: str) -> None:
    found = attack(perceptron(bias=form == "first_linear"), forms=(form,))
    assert found.outcome.state == "exact"
    assert len(found.outcome.forms) == 1
    other = attack(perceptron(bias=form != "first_linear"), forms=(form,))
    assert other.outcome.state == "skipped"


# losses


def test_activations_and_classes_without_bias() -> None:
    for act in (nn.ReLU, nn.Tanh, nn.SiLU):
        is_exact(attack(perceptron(bias=False, act=act)), NO_BIAS)
    two = perceptron(bias=False, classes=2)
    is_exact(attack(two, labels=torch.tensor([1])), NO_BIAS)


LOSSES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Tensor]] = {
    "label smoothing": (
        lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1),
        torch.tensor([3]),
    ),
    "soft labels": (
        lambda out, y: F.kl_div(out.log_softmax(1), y, reduction="batchmean"),
        torch.linspace(0, 1, 10).softmax(0)[None],
    ),
    "regression": (lambda out, y: F.mse_loss(out[:, 0], y), torch.tensor([0.7])),
    "multi label": (
        lambda out, y: F.binary_cross_entropy_with_logits(out, y),
        torch.tensor([[1.0, 0, 0, 1, 1, 0, 0, 0, 0, 1]]),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("form", [BIAS, NO_BIAS, POSITION])
def test_any_loss(name: str, form: str) -> None:
    loss, labels = LOSSES[name]
    model = small_vit() if form == POSITION else perceptron(bias=form == BIAS)
    found = attack(model, labels=labels, exposure=GradientExposure(NORMAL, loss))
    is_exact(found, form)
    assert found.outcome.labels is None, "a class id means nothing here"


@pytest.mark.parametrize("form", [BIAS, NO_BIAS, POSITION])
def test_a_training_step_of_the_users_own(form: str) -> None:
    def step(model: nn.Module, inputs: Tensor, labels: Tensor | None) -> Tensor:
        assert labels is not None
        return 2 * F.cross_entropy(model(inputs), labels) + 0.1

    model = small_vit() if form == POSITION else perceptron(bias=form == BIAS)
    is_exact(attack(model.train(), exposure=GradientExposure(NORMAL, None, step)), form)


def test_one_client_per_image_leaks_where_a_batch_is_refused() -> None:
    images, labels = photo(count=2), torch.tensor([1, 2])
    for size, word in ((1, "leaks"), (2, "not run"), (None, "not run")):
        client = Client(batch_size=size)
        auditor = Auditor(perceptron(), client=client, attacks=["closed_form"])
        assert auditor.audit((images, labels)).verdict.word == word
