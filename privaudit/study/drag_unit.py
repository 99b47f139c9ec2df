"""One attack of Lei 2025 on some images: the unit that is computed, and kept."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor

from privaudit import __version__
from privaudit._clock import Clock
from privaudit._provenance import code_digest, tensor_digest
from privaudit.attacks import FeatureAttack
from privaudit.attacks.base import INTERRUPTED
from privaudit.config import Budget, Split
from privaudit.exposure import FeatureExposure
from privaudit.metrics import METRICS
from privaudit.session.feature_cut import opened_cut
from privaudit.session.feature_runner import Request, run_features
from privaudit.study.drag_clients import ClientModel
from privaudit.study.keys import Cell, CellKey
from privaudit.study.store import Arrays
from privaudit.types import Batch, FeatureTarget, Reconstruction

KIND, SCORE_KIND = "reproduce-drag", "reproduce-drag-score"
SCORES = ("ms_ssim", "lpips", "dino", "ssim")
TOGETHER = 8
"""Images in one search, at most; what one gets does not depend on the others."""

Values = dict[str, JsonValue]


@dataclass(frozen=True, eq=False)
class Place:
    """A client that is cut.

    Attributes:
        model: As the paper names it.
        split: As the paper names it.
        client: With its weights, where the attack runs.
        exposure: What it sends.
        digest: Of the model.
        memory: Of attacks, such as a prior that was loaded; places may share it.
    """

    model: str
    split: str
    client: ClientModel
    exposure: FeatureExposure
    digest: str
    memory: dict[str, object] = field(default_factory=dict)

    def key(
        self,
        attack: FeatureAttack,
        image: Tensor,
        *,
        priors: Mapping[str, str],
        iterations: int | None,
    ) -> CellKey:
        """What a unit is called by.

        Args:
            attack: As the paper sets it.
            image: (1, C, H, W) in [0, 1].
            priors: Digests of what the attacker is handed, by name.
            iterations: The cap; None: as many as the attack makes.
        """
        return CellKey(
            kind=KIND,
            version=__version__,
            model=self.digest,
            data=tensor_digest(image),
            settings={
                "model": self.model,
                "split": self.split,
                "cut": str(self.exposure.cut.name),
                "attack": attack.name,
                "attack_settings": attack.settings(),
                "priors": dict(priors),
                "iterations": iterations,
            },
        )


def opened_place(
    model: str,
    split: str,
    *,
    client: ClientModel,
    digest: str,
    memory: dict[str, object],
) -> Place:
    """Cut a client where the paper does."""
    grey = torch.full((2, 3, client.side, client.side), 0.5)
    grey[1, :, ::2] = 0.7
    device = next(client.module.parameters()).device
    opened = opened_cut(
        client.module, Split(client.points[split]), grey.to(device),
        client.normalisation, None,
    )  # fmt: skip
    return Place(model, split, client, opened.exposure, digest, memory)


def attack_images(
    place: Place,
    attack: FeatureAttack,
    images: Tensor,
    *,
    priors: Mapping[str, object],
    iterations: int | None,
) -> list[tuple[Values, Arrays]]:
    """Attack some images together.

    Args:
        place: The client and its cut.
        attack: As the paper sets it.
        images: (count, C, H, W) in [0, 1], :data:`TOGETHER` at most.
        priors: What the attacker is handed.
        iterations: At most so many; None: as many as the attack makes.

    Raises:
        KeyboardInterrupt: Ctrl-C, also where the attack took it as its end.
    """
    module, exposure = place.client.module, place.exposure
    target = FeatureTarget(module, exposure, None, priors, place.memory)
    _forget(place.memory)
    requests = []
    device = next(module.parameters()).device
    for index, image in enumerate(images.to(device)):
        batch = Batch(image[None], None)
        sent = exposure.observe(module, batch)
        requests.append(Request(batch, sent, range(index, index + 1)))
    wall, cpu = time.perf_counter(), time.process_time()
    clock = Clock(Budget(iterations=iterations))
    ran = run_features(attack, target, requests, clock=clock, seed=0)
    spent: Values = {
        "seconds": (time.perf_counter() - wall) / len(images),
        "cpu_seconds": (time.process_time() - cpu) / len(images),
        "together": len(images),
        "device": _device(device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "code": code_digest(),
    }
    if any(o.reason == INTERRUPTED for o in ran.outcomes):
        raise KeyboardInterrupt
    return [({**_values(o), **spent}, _arrays(o)) for o in ran.outcomes]


def score(cell: Cell, truth: Tensor, metric: str) -> tuple[CellKey, Values | None, str]:
    """One score of a finished unit: its key, its values, or why there are none.

    Args:
        cell: The unit.
        truth: (1, C, H, W) in [0, 1].
        metric: Its name.
    """
    measure = METRICS[metric]()
    key = CellKey(
        kind=SCORE_KIND,
        version=__version__,
        model=cell.key.digest,
        data=tensor_digest(truth),
        settings={"metric": metric, "metric_settings": measure.settings()},
    )
    reason = measure.unavailable()
    found = cell.arrays().get("reconstruction")
    if reason or found is None:
        return key, None, reason or "no image"
    (one,) = measure.score(truth.cpu(), torch.from_numpy(found)[None])
    return key, {"value": one.value, "note": one.note}, one.note


def _values(outcome: Reconstruction) -> Values:
    search = outcome.search
    values: Values = {
        "state": outcome.state,
        "reason": outcome.reason,
        "form": outcome.form,
        "notes": list(outcome.notes),
        "iterations": search.iterations if search else 0,
        "restarts": search.restarts if search else 0,
        "unknowns": search.unknowns if search else 0,
        "loss_start": _finite(search.loss_start if search else None),
        "loss_final": _finite(search.loss_final if search else None),
        "loss_truth": _finite(search.loss_truth if search else None),
    }
    return values


def _arrays(outcome: Reconstruction) -> Arrays:
    if outcome.images is None:
        return {}
    image = outcome.images[0].detach().float().cpu().clamp(0, 1).contiguous()
    found: dict[str, Any] = {"reconstruction": image.numpy()}
    return found


def _forget(memory: dict[str, object]) -> None:
    """What attacks before found must not change a number; priors stay loaded."""
    for name in [n for n in memory if n == "start" or n.startswith("best-")]:
        del memory[name]


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None


def batches(numbers: Sequence[int], size: int) -> list[list[int]]:
    """``numbers`` in parts of ``size``."""
    return [list(numbers[i : i + size]) for i in range(0, len(numbers), size)]
