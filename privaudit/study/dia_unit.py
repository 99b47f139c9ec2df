"""One attack on one victim of Scheliga 2023: the unit that is computed, and kept."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor, nn

from privaudit import __version__
from privaudit._align import assignment
from privaudit._pixels import Normalisation
from privaudit._provenance import code_digest, model_digest, tensor_digest
from privaudit._runner import Client, Clock, Run, run
from privaudit._scoring import Pictures, attack_record
from privaudit.attacks import Attack
from privaudit.attacks.base import INTERRUPTED
from privaudit.config import Budget
from privaudit.errors import ConfigError
from privaudit.exposure import GradientExposure
from privaudit.study.dia_models import build
from privaudit.study.dia_paper import Case
from privaudit.study.dia_ssim import ssim_range_2
from privaudit.study.keys import CellKey
from privaudit.study.store import Arrays
from privaudit.types import AttackerKnowledge, Batch, Target

KIND = "reproduce-dia"
NORMAL = {
    "mnist": ((0.13066,), (0.30811,)),
    "cifar10": ((0.49147, 0.48226, 0.44677), (0.24703, 0.24349, 0.26159)),
}
_COLOUR_ONLY = ("lenet", "resnet18")
"""Get MNIST with its channel three times, as the paper's counts of values show."""

Values = dict[str, JsonValue]


@dataclass(frozen=True, eq=False)
class Victims:
    """The authors' own images of one data set.

    Attributes:
        dataset: ``mnist`` or ``cifar10``.
        images: (count, C, H, W) in [0, 1].
        labels: (count,).
    """

    dataset: str
    images: Tensor
    labels: Tensor

    @classmethod
    def load(cls, folder: Path, dataset: str) -> Victims:
        """Read ``dia_victims_DATASET.npz``: images (N, H, W, C) uint8, labels (N,).

        Raises:
            ConfigError: Missing, or something else.
        """
        file = folder / f"dia_victims_{dataset}.npz"
        try:
            with np.load(file, allow_pickle=False) as stored:
                images = torch.from_numpy(stored["images"])
                labels = torch.from_numpy(stored["labels"]).long()
            if images.dtype != torch.uint8 or images.dim() != 4:
                raise ValueError(f"images {images.dtype}, {tuple(images.shape)}")
        except (OSError, KeyError, ValueError) as error:
            raise ConfigError(
                f"--data: {file}",
                expected="an .npz with images (N, H, W, C) uint8 and labels (N,)",
                got=str(error),
                hint="Name the folder with the victims' images of the paper.",
            ) from error
        return cls(dataset, images.permute(0, 3, 1, 2).float() / 255, labels)

    def count(self, batch: int) -> int:
        """How many victims of ``batch`` images there are."""
        return len(self.images) // batch

    def batch(self, case: Case, number: int) -> Batch:
        """The images of one victim: the next ``case.batch`` of the file."""
        rows = slice(number * case.batch, (number + 1) * case.batch)
        images = self.images[rows]
        if case.model in _COLOUR_ONLY:
            images = images.expand(-1, 3, -1, -1)
        return Batch(images, self.labels[rows])


@dataclass(frozen=True, eq=False)
class Victim:
    """One client's step, ready to be attacked.

    Attributes:
        case: Its setting.
        number: Which one; also the seed of model, masks and search.
        model: Drawn anew for each victim.
        client: What it holds and sent.
        target: Whom the attack is against.
    """

    case: Case
    number: int
    model: nn.Module
    client: Client
    target: Target

    def key(self, attack: Attack, iterations: int | None) -> CellKey:
        """What a unit is called by."""
        batch = self.client.batch
        labels = [] if batch.labels is None else batch.labels.tolist()
        return CellKey(
            kind=KIND,
            version=__version__,
            model=model_digest(self.model),
            data=tensor_digest(batch.images),
            settings={
                **self.case.model_dump(mode="json"),
                "victim": self.number,
                "labels": labels,
                "attack": attack.name,
                "attack_settings": attack.settings(),
                "iterations": iterations,
            },
        )


def victim(victims: Victims, case: Case, number: int) -> Victim:
    """Draw the model and make the client's step; the world's generators stay."""
    batch = victims.batch(case, number)
    exposure = GradientExposure(_normalisation(case, batch), mode="as_is")
    channels, size = batch.images.shape[1], batch.images.shape[-1]
    with torch.random.fork_rng():
        torch.manual_seed(number)
        model = build(case.model, case.p, channels=channels, size=size)
    step = exposure.observe(model, batch, seed=number)
    client = Client(batch, step, range(case.batch))
    return Victim(
        case, number, model, client, Target(model, exposure, AttackerKnowledge())
    )


def attack_victim(
    one: Victim, attack: Attack, iterations: int | None
) -> tuple[Values, Arrays]:
    """Attack, check, score.

    Args:
        one: The victim.
        attack: The attack, as the paper sets it.
        iterations: At most so many; None: as many as the attack's own schedule.

    Raises:
        KeyboardInterrupt: Ctrl-C, also where the attack took it as its end.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    # A memory of its own: what ran before in this process must not change a number.
    target = replace(one.target, memory={})
    ran = run(
        attack, target, [one.client],
        labels_known=True, clock=Clock(Budget(iterations=iterations)), seed=one.number,
    )  # fmt: skip
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if ran.outcomes[0].reason == INTERRUPTED:
        raise KeyboardInterrupt
    spent: Values = {
        "seconds": wall,
        "cpu_seconds": cpu,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "code": code_digest(),
    }
    return {**_scores(one, ran), **spent}, _pictures(one, ran)


def _scores(one: Victim, ran: Run[Attack]) -> Values:
    record = attack_record(ran, [one.client], Pictures(), seed=one.number)
    found = record.evidence.scores
    per_image: Values = {
        name: [s.value for s in found.get(name, [])] for name in ("ssim", "psnr")
    }
    return {
        **per_image,
        "ssim_range_2": _ssim_range_2(one, ran),
        "mse": _mse(one, ran),
        "mmd": _finite(record.mask_mmd),
        "trd": _finite(record.mask_trd),
        "state": record.evidence.state,
        "reason": record.evidence.reason,
        "form": ran.outcomes[0].form,
        "iterations": record.iterations,
        "restarts": record.restarts,
        "unknowns": record.optimised,
        "loss_start": _finite(record.loss_start),
        "loss_final": _finite(record.loss_final),
        "loss_truth": _finite(record.loss_truth),
    }


def _ssim_range_2(one: Victim, ran: Run[Attack]) -> list[JsonValue]:
    guess = _in_order(one, ran)
    if guess is None:
        return []
    return list(ssim_range_2(one.client.batch.images, guess))


def _mse(one: Victim, ran: Run[Attack]) -> list[JsonValue]:
    """Mean squared error in the units of the model's input, as in the paper.

    Its PSNR of 7.4 dB beside an MSE of 2.8 can only be that: pixels are in [0, 1].
    """
    guess = _in_order(one, ran)
    if guess is None:
        return []
    std = one.target.exposure.normalisation.std or (1.0,)
    per_channel = torch.tensor(std).view(1, -1, 1, 1)
    apart = (guess - one.client.batch.images) / per_channel
    return [float(e) for e in apart.square().flatten(1).mean(1)]


def _in_order(one: Victim, ran: Run[Attack]) -> Tensor | None:
    """The reconstructions, each in the place of the image that it is like."""
    images = ran.outcomes[0].images
    if images is None:
        return None
    truth = one.client.batch.images
    return images[assignment(truth, images)].detach().float().clamp(0, 1)


def _pictures(one: Victim, ran: Run[Attack]) -> Arrays:
    guess = _in_order(one, ran)
    pictures: dict[str, Any] = {"original": one.client.batch.images.contiguous()}
    if guess is not None:
        pictures["reconstruction"] = guess.contiguous()
    return {name: value.numpy() for name, value in pictures.items()}


def _normalisation(case: Case, batch: Batch) -> Normalisation:
    mean, std = NORMAL[case.dataset]
    times = batch.images.shape[1] // len(mean)
    return Normalisation(mean * times, std * times)


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None
