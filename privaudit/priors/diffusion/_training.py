"""Trains an embedded prior on photographs, on a CPU or a GPU."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from privaudit._progress import tick
from privaudit.errors import ConfigError
from privaudit.priors.diffusion.card import NetworkFacts, PriorCard
from privaudit.priors.diffusion.schedule import (
    add_noise,
    cosine_alphas,
    split,
)
from privaudit.priors.diffusion.unet import UNet

PROBED = (50, 100, 200, 300, 500, 700, 900)
"""Steps at which a trained prior is tried on held-out images."""
HELD_OUT = 64


class PriorTraining(BaseModel):
    """How a prior is trained."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(default=64, ge=8)
    """Side of the crops, in pixels; smaller images are taken whole."""
    widths: tuple[int, ...] = (64, 128, 192, 256)
    """Channels of each level of the network; multiples of 8."""
    time_width: int = Field(default=256, ge=16, multiple_of=4)
    batch_size: int = Field(default=32, ge=1)
    """Crops of a step; smaller images come in proportion more at once."""
    steps: int = Field(default=20_000, ge=1)
    """At most."""
    learning_rate: float = Field(default=8e-4, gt=0)
    """Of AdamW; after the warm-up a cosine down to nothing."""
    warm_up: int = Field(default=200, ge=1)
    """Steps in which the rate grows."""
    average: float = Field(default=0.999, ge=0, lt=1)
    """Of the weights, exponentially: the average is what is kept."""
    flip: bool = True
    """Also learn mirrored images; wrong for digits and letters."""
    half: bool = False
    """Compute in bfloat16: faster where the processor has units for it."""


@dataclass(eq=False)
class PriorTrainer:
    """One training, from nothing or from where another ended.

    Attributes:
        pictures: Stacks of images of one size each, uint8 (count, C, H, W).
        settings: How.
        generator: Draws weights, crops and noise, on the CPU.
        device: Where it runs.
        keep: Called with the average so far every few minutes, and at the end.
        start: Where another training ended; None: from nothing.
        before: Its card, whose steps and seconds count as well.
    """

    pictures: Sequence[Tensor]
    settings: PriorTraining
    generator: torch.Generator
    device: torch.device
    keep: Callable[[PriorTrainer], None] = lambda _: None
    start: UNet | None = None
    before: PriorCard | None = None
    done: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        _require_pictures(self.pictures)
        self.learnt = [p[HELD_OUT:] if len(p) > 2 * HELD_OUT else p
                       for p in self.pictures]  # fmt: skip
        channels = self.pictures[0].shape[1]
        own = self.settings
        network = self.start
        if network is None:
            with torch.random.fork_rng(devices=[]):
                network = UNet(channels, own.widths, own.time_width)
            _draw_weights(network, self.generator)
        self.network = network.to(self.device).to(memory_format=torch.channels_last)
        self.network.train().requires_grad_(True)
        self.averaged = copy.deepcopy(self.network).eval().requires_grad_(False)
        self.alphas = cosine_alphas()

    def run(self, seconds: float | None = None, *, keep_every_s: float = 300.0) -> None:
        """Train for so many seconds, or for the steps of the settings. Ctrl-C ends it.

        Raises:
            ConfigError: The loss is not finite.
        """
        optimiser = torch.optim.AdamW(
            self.network.parameters(), lr=self.settings.learning_rate, weight_decay=1e-4
        )
        started = kept = time.monotonic()
        try:
            while (progress := self._progress(started, seconds)) < 1:
                self._set_rate(optimiser, progress)
                self.losses.append(self._step(optimiser))
                self.done += 1
                if self.done % 50 == 0:
                    self._look()
                now = time.monotonic()
                self.seconds = now - started
                if now - kept > keep_every_s:
                    kept = now
                    self.keep(self)
        except KeyboardInterrupt:
            pass
        self.keep(self)

    def held_out(self) -> Tensor:
        """Crops that it did not learn from, as many as there are, at most 64."""
        first = self.pictures[0]
        own = torch.Generator().manual_seed(0)
        images = first[:HELD_OUT] if len(first) > 2 * HELD_OUT else first[-HELD_OUT:]
        return self._cropped(images, own, flip=False)

    def error(self) -> tuple[float, dict[str, float]]:
        """The loss, and PSNR of x̂₀ by step, of the average on held-out crops."""
        images, own = self.held_out(), torch.Generator().manual_seed(1)
        found: dict[str, float] = {}
        errors = []
        with torch.no_grad():
            for step in PROBED:
                noise = torch.randn(images.shape, generator=own).to(self.device)
                alpha = float(self.alphas[step])
                noisy = add_noise(images, alpha, noise)
                steps = torch.full((len(images),), step, device=self.device)
                output = self.averaged(noisy, steps)
                errors.append(F.mse_loss(output, _velocity(images, noise, alpha)))
                clean = split(noisy, output, alpha, "v_prediction")[0].clamp(-1, 1)
                squared = float(((clean - images) / 2).square().mean())
                found[str(step)] = round(-10 * math.log10(max(squared, 1e-10)), 2)
        return float(torch.stack(errors).mean()), found

    def facts(self, words: Mapping[str, str]) -> NetworkFacts:
        """The card of what has been learnt so far.

        Args:
            words: ``name``, ``learnt_from``, ``good_for``, ``not_for``, ``licence``.
        """
        loss, denoising = self.error()
        sides = [min(self.settings.size, *p.shape[2:]) for p in self.pictures]
        card = PriorCard(
            kind="pixel diffusion",
            channels=self.pictures[0].shape[1],
            size=(max(sides), max(sides)),
            parameters=sum(p.numel() for p in self.averaged.parameters()),
            images=sum(len(p) for p in self.learnt),
            steps=self.done + ((self.before and self.before.steps) or 0),
            seconds=round(
                self.seconds + ((self.before and self.before.seconds) or 0.0), 1
            ),
            loss=round(loss, 5),
            denoising_db=denoising,
            **words,
        )
        return NetworkFacts(
            widths=self.averaged.widths, time_width=self.averaged.time.width, card=card
        )

    def _progress(self, started: float, seconds: float | None) -> float:
        share = self.done / self.settings.steps
        if seconds is None:
            return share
        return max(share, (time.monotonic() - started) / seconds)

    def _set_rate(self, optimiser: torch.optim.Optimizer, progress: float) -> None:
        warm = min(1.0, (self.done + 1) / self.settings.warm_up)
        fall = 0.5 * (1 + math.cos(math.pi * progress))
        for group in optimiser.param_groups:
            group["lr"] = self.settings.learning_rate * warm * max(fall, 1e-3)

    def _step(self, optimiser: torch.optim.Optimizer) -> float:
        images = self._batch()
        count = len(images)
        step = torch.randint(len(self.alphas), (count,), generator=self.generator)
        noise = torch.randn(images.shape, generator=self.generator).to(self.device)
        alpha = self.alphas[step].to(self.device)[:, None, None, None]
        noisy = alpha.sqrt() * images + (1 - alpha).sqrt() * noise
        wanted = alpha.sqrt() * noise - (1 - alpha).sqrt() * images
        with torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.settings.half
        ):
            output = self.network(
                noisy.contiguous(memory_format=torch.channels_last),
                step.to(self.device),
            )
        loss = F.mse_loss(output.float(), wanted)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        optimiser.step()
        self._average()
        return float(loss.detach())

    def _average(self) -> None:
        """Young averages forget faster, or they would keep the random start."""
        rate = min(self.settings.average, (1 + self.done) / (10 + self.done))
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.averaged.parameters()),
                list(self.network.parameters()),
                1 - rate,
            )

    def _batch(self) -> Tensor:
        """Crops of one stack, drawn in proportion to its pixels' worth."""
        turn = int(torch.randint(len(self.learnt), (), generator=self.generator))
        stack, size = self.learnt[turn], self.settings.size
        side = min(size, *stack.shape[2:])
        count = max(1, round(self.settings.batch_size * (size / side) ** 2))
        chosen = torch.randint(len(stack), (count,), generator=self.generator)
        return self._cropped(stack[chosen], self.generator, flip=self.settings.flip)

    def _cropped(self, images: Tensor, own: torch.Generator, *, flip: bool) -> Tensor:
        """Square crops of a random scale, (count, C, side, side) in [-1, 1]."""
        height, width = images.shape[2:]
        size = min(self.settings.size, height, width)
        side = int(torch.randint(size, min(height, width) + 1, (), generator=own))
        tops = torch.randint(height - side + 1, (len(images),), generator=own)
        lefts = torch.randint(width - side + 1, (len(images),), generator=own)
        crops = torch.stack([
            image[:, top : top + side, left : left + side]
            for image, top, left in zip(
                images, tops.tolist(), lefts.tolist(), strict=True
            )
        ]).to(self.device).float()  # fmt: skip
        if side != size:
            crops = F.interpolate(
                crops, (size, size), mode="bilinear", antialias=True,
                align_corners=False,
            )  # fmt: skip
        if flip:
            turned = torch.rand(len(crops), generator=own).to(self.device) < 0.5
            crops = torch.where(turned[:, None, None, None], crops.flip(-1), crops)
        return crops / 127.5 - 1

    def _look(self) -> None:
        recent = self.losses[-50:]
        mean = sum(recent) / len(recent)
        if not math.isfinite(mean):
            raise ConfigError(
                "prior.train",
                expected="a loss that falls",
                got=f"{mean} after {self.done} steps",
                hint="Lower learning_rate.",
            )
        tick(self.done, self.settings.steps, mean)


def _velocity(images: Tensor, noise: Tensor, alpha: float) -> Tensor:
    """v, what the network learns. Source: Salimans 2022, section 4."""
    return math.sqrt(alpha) * noise - math.sqrt(1 - alpha) * images


def _draw_weights(network: UNet, generator: torch.Generator) -> None:
    """Weights from our own generator, as torch would draw them; the last are zero."""
    for name, parameter in network.named_parameters():
        if "norm" in name or name.startswith("leave.0"):
            continue
        if parameter.dim() > 1:
            torch.nn.init.kaiming_uniform_(
                parameter, a=math.sqrt(5), generator=generator
            )
        else:
            parameter.data.zero_()
    for name, parameter in network.named_parameters():
        if name == "leave.2.weight":
            parameter.data.zero_()
        elif name.endswith("conv2.weight"):
            parameter.data.mul_(0.1)


def _require_pictures(pictures: Sequence[Tensor]) -> None:
    shapes = {p.shape[1] for p in pictures}
    if len(shapes) == 1 and all(p.dtype == torch.uint8 and len(p) for p in pictures):
        return
    raise ConfigError(
        "prior.train",
        expected="stacks of images, all with as many channels",
        got=f"{len(pictures)} stack(s), channels {sorted(shapes)}",
        hint="Convert the images to one mode first.",
    )
