"""Guided diffusion over Stable Diffusion 1.5 against open_clip's ViT-B/16, on a GPU.

    python benchmarks/guided_diffusion_gpu.py --out d.json [--source FOLDER]
    python benchmarks/guided_diffusion_gpu.py --out d.json --tiny    (dry run, CPU)

Without ``--source`` the networks have the architecture and random weights: speed and
memory are the same, pictures mean nothing. Cells that do not fit into ``--minutes`` are
named in the file. Without a CUDA device it measures nothing and ends with 0.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._speed_common import peak_mib
from privaudit._controls import shipped_images
from privaudit._pixels import Normalisation
from privaudit.attacks import Drag
from privaudit.config import Budget
from privaudit.exposure import Cut, FeatureExposure
from privaudit.priors.diffusion import Diffusers, DiffusionModel, PriorCard
from privaudit.priors.diffusion._networks import Autoencoder, Canvas, NoisePredictor
from privaudit.types import Batch, FeatureLayout, FeatureTarget

PRECISIONS = ("float16", "bfloat16", "float32")
BATCHES = (1, 4, 16)
SIDE, GRID, BLOCK = 224, (14, 14), "transformer.resblocks.5"
WARM, STEPS = 2, 6
PAPER = 250 * 16
"""Guided steps of one image in Lei 2025: T 250, k 16."""
CLIP = Normalisation(
    (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
)


@dataclass(frozen=True)
class Size:
    """What differs between the real architecture and the dry run."""

    unet: dict[str, Any]
    vae: dict[str, Any]
    resolution: int


REAL = Size(
    {"sample_size": 64, "cross_attention_dim": 768, "attention_head_dim": 8},
    {"block_out_channels": (128, 256, 512, 512), "layers_per_block": 2,
     "down_block_types": ("DownEncoderBlock2D",) * 4,
     "up_block_types": ("UpDecoderBlock2D",) * 4},
    512,
)  # fmt: skip
TINY = Size(
    {"sample_size": 8, "cross_attention_dim": 768, "attention_head_dim": 8,
     "block_out_channels": (32, 64), "layers_per_block": 1,
     "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
     "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D")},
    {"block_out_channels": (32, 32), "down_block_types": ("DownEncoderBlock2D",) * 2,
     "up_block_types": ("UpDecoderBlock2D",) * 2},
    16,
)  # fmt: skip


def main() -> None:
    """Measure every cell, or say why not."""
    options = _parsed()
    device = torch.device("cpu" if options.tiny else "cuda")
    record: dict[str, Any] = {"torch": torch.__version__, "device": device.type}
    if device.type == "cuda" and not torch.cuda.is_available():
        record["skipped"] = "no CUDA device: nothing was measured"
        print(record["skipped"])
        options.out.write_text(json.dumps(record, indent=1))
        return
    if device.type == "cuda":
        record["name"] = torch.cuda.get_device_name()
    record |= {"weights": options.source or "random", "rows": [], "left_out": []}
    deadline = time.monotonic() + 60 * options.minutes
    for precision in PRECISIONS:
        if time.monotonic() > deadline:
            record["left_out"].append(precision)
            continue
        prior = _prior(options, precision, device)
        record[f"{precision}_s"] = _parts(prior, device)
        for batch in BATCHES[:1] if options.tiny else BATCHES:
            if time.monotonic() > deadline:
                record["left_out"].append([precision, batch])
                continue
            row = {"precision": precision} | _measured(prior, batch, device)
            record["rows"].append(row)
            print(json.dumps(row), flush=True)
            options.out.write_text(json.dumps(record, indent=1))
        del prior


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--source", help="folder of Stable Diffusion 1.5")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args()


def _prior(
    options: argparse.Namespace, precision: Any, device: torch.device
) -> DiffusionModel:
    if options.source is not None:
        return Diffusers(source=options.source, precision=precision).load(device)
    return _random(TINY if options.tiny else REAL, getattr(torch, precision), device)


def _random(size: Size, dtype: torch.dtype, device: torch.device) -> DiffusionModel:
    """The networks with random weights, drawn where they will run."""
    import diffusers

    def ready(network: Any) -> Any:
        return network.eval().requires_grad_(False).to(dtype)

    torch.manual_seed(0)
    with device:
        unet = ready(diffusers.UNet2DConditionModel(**size.unet))
        vae = ready(diffusers.AutoencoderKL(sample_size=size.resolution, **size.vae))
    vae.enable_slicing()
    factor = 2 ** (len(size.vae["block_out_channels"]) - 1)
    canvas = Canvas("random prior", 3, factor, size.resolution)
    coder = Autoencoder(vae, dtype, canvas, vae.float)
    prompt = torch.randn(1, 77, 768, device=device, dtype=dtype)
    schedule = diffusers.DDIMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear"
    )
    card = PriorCard(
        name="random", kind="latent diffusion", channels=3, learnt_from="nothing",
        parameters=sum(p.numel() for p in unet.parameters()),
        good_for="timing", not_for="pictures",
    )  # fmt: skip
    return DiffusionModel(
        predict=NoisePredictor(unet, dtype, 4, prompt), alphas=schedule.alphas_cumprod,
        prediction="epsilon", decode=coder.decode, encode=coder.encode,
        latent_shape=coder.latent_shape, clip=False, card=card, notes=coder.notes,
    )  # fmt: skip


def _client(device: torch.device, batch: int) -> tuple[FeatureTarget, Tensor]:
    """open_clip's image encoder with random weights, cut in the middle."""
    import open_clip

    torch.manual_seed(0)
    model = open_clip.create_model("ViT-B-16", pretrained=None).visual
    model = model.eval().requires_grad_(False).to(device)
    exposure = FeatureExposure(CLIP, Cut(BLOCK), FeatureLayout("tokens", 1, GRID))
    images = shipped_images(batch, (3, SIDE, SIDE)).to(device)
    return FeatureTarget(model, exposure), images


def _measured(
    prior: DiffusionModel, batch: int, device: torch.device
) -> dict[str, Any]:
    """Guided steps per second of so many images at once."""
    target, images = _client(device, batch)
    sent = target.exposure.observe(target.model, Batch(images, None))
    own = FeatureTarget(target.model, target.exposure, priors={"diffusion": prior})

    def run(steps: int, together: int) -> Any:
        attack = Drag(steps=steps, rounds=1, together=together)
        return attack.run(
            own, sent, budget=Budget(), generator=torch.Generator().manual_seed(0)
        )

    found = run(WARM, batch)
    facts = {
        "images": batch,
        "state": sorted({one.state for one in found}),
        "reason": found[0].reason,
        "notes": found[0].notes[1:],
    }
    if found[0].search is None:
        return facts
    # Where memory ran out, the warm-up found how many fit; the rest is timed.
    together = int(found[0].search.path.split()[0])
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    step = _seconds(lambda: run(STEPS, together), device) / STEPS
    return facts | {
        "at_once": together,
        "s_per_step": round(step, 4),
        "image_steps_per_s": round(batch / step, 3),
        "images_per_hour_at_4000_steps": round(3600 * batch / step / PAPER, 2),
        "peak_memory_mib": peak_mib(device.type),
    }


def _parts(prior: DiffusionModel, device: torch.device) -> dict[str, float]:
    """Seconds, forwards and backwards, of what one guided step of one image asks."""
    target, images = _client(device, 1)
    z = torch.randn(1, *prior.latent_shape((3, SIDE, SIDE)), device=device)
    step = torch.tensor([500], device=device)
    asked: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
        "unet": (lambda x: prior.predict(x, step), z),
        "decoder": (prior.decode, z),
        "client": (lambda x: target.exposure.predict(target.model, x), images),
    }
    return {
        name: round(_seconds(_both_ways(function, start), device, repeats=3), 4)
        for name, (function, start) in asked.items()
    }


def _both_ways(
    function: Callable[[Tensor], Tensor], start: Tensor
) -> Callable[[], object]:
    def run() -> object:
        leaf = start.detach().requires_grad_()
        return torch.autograd.grad(function(leaf).float().square().mean(), leaf)

    run()
    return run


def _seconds(
    function: Callable[[], object], device: torch.device, *, repeats: int = 1
) -> float:
    """Mean of a call, with all that it started on the device."""
    _wait(device)
    started = time.monotonic()
    for _ in range(repeats):
        function()
    _wait(device)
    return (time.monotonic() - started) / repeats


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
