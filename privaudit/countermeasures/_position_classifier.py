"""Where a token comes from, told by the token alone: learnt on the attacker's images.

Source: Lei 2025, section 5.5; differs in what it learns from where the attacker has few
images: crops of photographs that come with this package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit._controls import shipped_images

if TYPE_CHECKING:
    from privaudit.types import FeatureTarget

SHIPPED = 64
_TOKENS_A_STEP = 2048
_IMAGES_AT_ONCE = 32
_HELD_OUT = 8
"""Every eighth image is not learnt from."""
_SMALLEST_CROP = 0.6
_DROPOUT = 0.1


@dataclass(frozen=True)
class Lesson:
    """How the classifier is trained.

    Attributes:
        steps: Of Adam.
        learning_rate: Of Adam; it falls to nothing along a cosine.
        width: Units of the hidden layer; None: as many as a token has channels.
        images: How many images of the attacker's own it learns from.
    """

    steps: int
    learning_rate: float
    width: int | None
    images: int


@dataclass(frozen=True, eq=False)
class PositionClassifier:
    """A trained classifier, and how good it is on images that it never saw.

    Attributes:
        network: (…, channels) → (…, positions), standardised tokens to logits.
        mean: (channels,) of the tokens that it learnt from.
        scale: (channels,), their standard deviation.
        accuracy: Share of held-out tokens that it puts in their own place.
        placed: The same, once no two tokens of an image may share a place.
        off_by: Mean ℓ1 distance on the grid from there; None: there is no grid.
        images: How many it learnt from.
    """

    network: nn.Module
    mean: Tensor
    scale: Tensor
    accuracy: float = float("nan")
    placed: float = float("nan")
    off_by: float | None = None
    images: int = 0

    def log_probabilities(self, tokens: Tensor) -> Tensor:
        """(…, channels) → (…, positions)."""
        logits = self.network((tokens - self.mean) / self.scale)
        found: Tensor = logits.float().log_softmax(-1)
        return found

    @property
    def note(self) -> str:
        """What the report says of it."""
        grid = "" if self.off_by is None else f", off by {self.off_by:.2f} places (l1)"
        return (
            f"the position classifier learnt from {self.images} images of the "
            f"attacker's own; of tokens of others it places {self.accuracy:.1%}{grid}, "
            f"and {self.placed:.1%} where each place is taken once"
        )


def classifier_for(
    target: FeatureTarget,
    image_shape: tuple[int, int, int],
    lesson: Lesson,
    generator: torch.Generator,
) -> PositionClassifier:
    """The classifier of this model and cut; trained once, then kept in its memory.

    Args:
        target: Model and cut; layout ``tokens``.
        image_shape: (channels, height, width).
        lesson: How it is trained.
        generator: Source of all randomness, on the CPU.
    """
    key = f"position classifier: {lesson}, {len(target.exposure.reads)} reads"
    known = target.memory.get(key)
    if not isinstance(known, PositionClassifier):
        known = _trained(target, image_shape, lesson, generator)
        target.memory[key] = known
    return known


def best_places(cost: Tensor) -> Tensor:
    """For each row of ``cost`` (tokens, places) a place of its own: least in all.

    There may be more places than tokens.
    """
    from scipy.optimize import linear_sum_assignment

    _, places = linear_sum_assignment(cost.detach().cpu().numpy())
    return torch.from_numpy(places).to(cost.device)


def own_images(
    target: FeatureTarget,
    image_shape: tuple[int, int, int],
    count: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Images to learn from, and some to be judged by; crops where there are few.

    Neither shows a part of an image of the other.
    """
    public = target.public
    if public is None or len(public) < _HELD_OUT:
        public = shipped_images(SHIPPED, image_shape)
    order = torch.randperm(len(public), generator=generator)[:count]
    public = public[order.to(public.device)]
    apart = torch.arange(len(public)) % _HELD_OUT == 0
    learnt, held = public[~apart], public[apart]
    missing = count - count // _HELD_OUT - len(learnt)
    if missing > 0:
        again = torch.randint(len(learnt), (missing,), generator=generator)
        crops = _crops(learnt[again.to(learnt.device)], generator)
        learnt = torch.cat([learnt, crops])
    return learnt, held


def _crops(images: Tensor, generator: torch.Generator) -> Tensor:
    """A random part of each image at full size, half of them mirrored."""
    count = len(images)
    draws = torch.rand(4, count, generator=generator).to(images)
    size = _SMALLEST_CROP + (1 - _SMALLEST_CROP) * draws[0]
    mirror = torch.where(draws[3] < 0.5, -1.0, 1.0)
    theta = images.new_zeros(count, 2, 3)
    theta[:, 0, 0], theta[:, 1, 1] = size * mirror, size
    theta[:, :, 2] = ((2 * draws[1:3] - 1) * (1 - size)).T
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _trained(
    target: FeatureTarget,
    image_shape: tuple[int, int, int],
    lesson: Lesson,
    generator: torch.Generator,
) -> PositionClassifier:
    learnt, held = own_images(target, image_shape, lesson.images, generator)
    tokens, others = _tokens(target, learnt), _tokens(target, held)
    across = (0, 1)
    mean, spread = tokens.mean(across), tokens.std(across, correction=0)
    scale = spread.clamp_min(1e-3 * float(spread.mean()) + 1e-12)
    positions, channels = tokens.shape[1:]
    network = _fresh(channels, lesson.width or channels, positions, generator)
    fresh = PositionClassifier(network.to(tokens.device), mean, scale)
    _learn(network, (tokens - mean) / scale, lesson, generator)
    return _judged(fresh, others, target, len(learnt))


def _tokens(target: FeatureTarget, images: Tensor) -> Tensor:
    """Patch tokens (images, positions, channels) that the client makes of them."""
    device = next((p.device for p in target.model.parameters()), images.device)
    prefix = target.exposure.layout.prefix_tokens
    with torch.no_grad():
        made = [
            target.exposure.predict(target.model, some.to(device))
            for some in torch.split(images, _IMAGES_AT_ONCE)
        ]
    return torch.cat(made).float()[:, prefix:]


def _fresh(
    channels: int, width: int, positions: int, generator: torch.Generator
) -> nn.Sequential:
    """Two layers; weights drawn from ``generator``, on the CPU."""
    with torch.random.fork_rng(devices=[]):
        first, second = nn.Linear(channels, width), nn.Linear(width, positions)
    with torch.no_grad():
        for layer in (first, second):
            fan = layer.weight.shape[1]
            drawn = torch.randn(layer.weight.shape, generator=generator)
            layer.weight.copy_(drawn / fan**0.5)
            layer.bias.zero_()
    return nn.Sequential(first, nn.ReLU(), second)


def _learn(
    network: nn.Module, tokens: Tensor, lesson: Lesson, generator: torch.Generator
) -> None:
    """Cross-entropy by Adam, weights decaying, over tokens of all images alike."""
    positions = tokens.shape[1]
    flat = tokens.flatten(0, 1)
    optimiser = torch.optim.AdamW(
        network.parameters(), lr=lesson.learning_rate, weight_decay=0.05
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, lesson.steps)
    for _ in range(lesson.steps):
        chosen = torch.randint(len(flat), (_TOKENS_A_STEP,), generator=generator)
        kept = torch.rand(_TOKENS_A_STEP, flat.shape[1], generator=generator) > _DROPOUT
        some = flat[chosen.to(flat.device)] * kept.to(flat)
        with torch.enable_grad():
            logits = network(some)
            loss = F.cross_entropy(logits, (chosen % positions).to(flat.device))
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    network.eval().requires_grad_(False)


def _judged(
    fresh: PositionClassifier, tokens: Tensor, target: FeatureTarget, images: int
) -> PositionClassifier:
    """With what it gets right on tokens (images, positions, channels) of others."""
    with torch.no_grad():
        scores = fresh.log_probabilities(tokens)
    guess, truth = scores.argmax(-1), torch.arange(tokens.shape[1])
    truth = truth.to(guess.device)
    placed = torch.stack([best_places(-one) for one in scores])
    grid, off_by = target.exposure.layout.grid, None
    if grid is not None:
        across = (guess // grid[1] - truth // grid[1]).abs()
        along = (guess % grid[1] - truth % grid[1]).abs()
        off_by = float((across + along).double().mean())
    return PositionClassifier(
        fresh.network,
        fresh.mean,
        fresh.scale,
        accuracy=float((guess == truth).double().mean()),
        placed=float((placed == truth).double().mean()),
        off_by=off_by,
        images=images,
    )
