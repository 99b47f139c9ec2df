"""A prior in its domain and out of it: what does each attack find of which images?

    python benchmarks/guided_domains.py --data FOLDER --out FOLDER

The client for digits sends digits, textures and microscopy of scikit-image. ``drag``
has the prior of digits, the inverse network learnt from digits, ``rmle`` nothing. One
line of JSON per cell, and how well the prior takes noise off the images (``fit_db``).
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.guided import Found, cell_of
from benchmarks.split_clients import client_of
from privaudit._pixels import to_png
from privaudit.attacks import Drag, FeatureAttack, InverseNetwork, Rmle
from privaudit.priors.diffusion import DIFFUSION_PRIORS, loaded
from privaudit.session.prior_fit import denoising_db

COUNT = 16
KINDS = {
    "digits": (),
    "textures": ("brick", "grass", "gravel"),
    "microscopy": ("cell", "immunohistochemistry", "microaneurysms"),
}


def main() -> None:
    """Run the cells, print and keep a line each, and a sheet per cut."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cut", action="append")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    client = client_of("digits", options.data)
    prior = loaded("digits", DIFFUSION_PRIORS, torch.device("cpu"))
    for cut in options.cut or ("pool", "hidden"):
        memory: dict[str, object] = {}
        rows: list[Tensor] = []
        for kind, names in KINDS.items():
            images = crops(names, 64) if names else client.held_out
            other = replace(client, name=f"digits-{kind}", held_out=images)
            cell = cell_of(other, cut, COUNT, options.out)
            # The network is trained once: it is the same attacker every time.
            cell.target = replace(cell.target, memory=memory)
            rows.append(cell.truth)
            for label, attack in _attacks():
                found, losses = cell.attacked(attack, None, None)
                rows.append(found)
                one = Found(label, found, losses, 0.0)
                line = {
                    "cut": cut, "images": kind, "attack": label,
                    "ssim": round(float(one.ssim(cell.truth).mean()), 4),
                    "psnr_db": round(float(one.psnr(cell.truth).mean()), 2),
                    "re_identified": float(
                        one.right(cell.candidates).double().mean()
                    ),
                    "loss": float(np.mean(losses)),
                    "fit_db": round(denoising_db(prior, cell.truth, 0), 2),
                }  # fmt: skip
                print(json.dumps(line), flush=True)
                with (options.out / "domains.jsonl").open("a") as file:
                    file.write(json.dumps(line) + "\n")
        sheet = torch.cat([torch.cat(list(r), 2) for r in rows], 1)
        (options.out / f"domains-{cut}.png").write_bytes(to_png(sheet, None))


def _attacks() -> tuple[tuple[str, FeatureAttack], ...]:
    return (
        ("drag", Drag(prior="digits")),
        ("inverse_network", InverseNetwork()),
        ("rmle", Rmle(iterations=2000)),
    )


def crops(names: tuple[str, ...], count: int) -> Tensor:
    """(count, 1, 28, 28) in [0, 1], from 84×84 windows that do not overlap."""
    from skimage import data

    found: list[Tensor] = []
    for name in names:
        picture = torch.from_numpy(np.asarray(getattr(data, name)())).float()
        picture = picture if picture.dim() == 2 else picture[..., :3].mean(-1)
        side = min(84, min(picture.shape) // 4)
        windows = picture.unfold(0, side, side).unfold(1, side, side)
        found.append(windows.reshape(-1, side, side)[:, None] / 255)
    small = [F.interpolate(w, (28, 28), mode="area") for w in found]
    # One picture after the other in turn, so that the first 16 show them all.
    turns = [w for group in zip(*small, strict=False) for w in group]
    rest = [w for s in small for w in s[min(map(len, small)) :]]
    return torch.stack([*turns, *rest][:count])


if __name__ == "__main__":
    main()
