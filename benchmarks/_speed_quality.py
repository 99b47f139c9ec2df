"""Seconds until the image is recognised: the plain loop, the search, the audit."""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks._speed_common import CIFAR, Victims, now
from benchmarks._speed_plain import PlainLoop
from privaudit import Auditor
from privaudit.attacks import DropoutInversion
from privaudit.config import Budget, Client
from privaudit.metrics import Ssim
from privaudit.types import AttackerKnowledge, Target

LEVELS = (0.85, 0.95)
EVERY = 10


def quality(
    name: str,
    victims: Victims,
    *,
    device: str,
    iterations: int,
    plain: bool,
    search: bool,
) -> dict[str, Any]:
    """What each way takes for the first victim.

    Args:
        name: Of the model.
        victims: The first one is attacked.
        device: Where.
        iterations: At most, of the plain loop and of the search.
        plain: Run the plain loop; it takes minutes for a ViT.
        search: Run dropout inversion by itself; so does it.
    """
    row: dict[str, Any] = {"model": name, "device": device}
    row["audit"] = _audit(victims)
    if search:
        row["search"] = _search(victims, iterations, device)
    if plain:
        row["plain_loop_usual"] = _plain(victims, iterations, device)
    return row


def _plain(victims: Victims, iterations: int, device: str) -> dict[str, Any]:
    """Looked at every few iterations; the looks are not timed."""
    loop = PlainLoop(victims, "usual")
    truth = victims.batches[0].images
    reached: dict[str, float] = {}
    spent, score, done = 0.0, 0.0, 0
    while done < iterations and len(reached) < len(LEVELS):
        started = now(device)
        for _ in range(EVERY):
            loop.step()
        spent += now(device) - started
        done += EVERY
        found = CIFAR.invert(loop.best).clamp(0, 1)
        score = float(Ssim().measure(truth.cpu(), found.cpu())[0])
        for level in LEVELS:
            if score >= level:
                reached.setdefault(str(level), spent)
    return {
        "seconds_to_ssim": reached,
        "iterations": done,
        "seconds": spent,
        "ssim": score,
        "iterations_per_s": done / spent,
    }


def _search(victims: Victims, iterations: int, device: str) -> dict[str, Any]:
    """Dropout inversion alone, to its own end."""
    batch, step = victims.batches[0], victims.steps[0]
    target = Target(
        victims.model, victims.exposure, AttackerKnowledge(batch.labels), {}
    )
    started = now(device)
    found = DropoutInversion().run(
        target,
        step.observation,
        budget=Budget(iterations=iterations),
        generator=torch.Generator().manual_seed(0),
    )
    seconds = now(device) - started
    images = found.images
    score = None
    if images is not None:
        score = float(Ssim().measure(batch.images.cpu(), images.cpu())[0])
    made = 0 if found.search is None else found.search.iterations
    return {"seconds": seconds, "ssim": score, "iterations": made}


def _audit(victims: Victims) -> dict[str, Any]:
    """The whole audit: inventory, every rung of the ladder, scores, verdict."""
    batch = victims.batches[0]
    auditor = Auditor(
        victims.model, mean=CIFAR.mean, std=CIFAR.std, client=Client(batch_size=1)
    )
    started = time.perf_counter()
    result = auditor.audit((batch.images, batch.labels))
    seconds = time.perf_counter() - started
    scores = {
        name: max(s.value for s in a.scores["ssim"] if s.value is not None)
        for name, a in result.attacks.items()
        if any(s.value is not None for s in a.scores.get("ssim", []))
    }
    return {"seconds_wall": seconds, "verdict": result.verdict.word, "ssim": scores}
