"""The sheet of one client of guided.py, a labelled row per attack.

    python benchmarks/guided_sheet.py --data FOLDER --kept FOLDER --client cnn \
        --cut stages.2 --out docs/images/guided-cnn.jpg

``--kept`` is the folder that guided.py wrote; rows that are not there are left out.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.guided import CUTS
from benchmarks.split_clients import client_of

LABELS = (
    "drag", "drag+polish", "drag_pp+polish", "ensemble", "ensemble+polish", "lm",
    "lm+polish", "rmle", "rmle+polish", "inverse_network", "inverse_network+polish",
    "grey+polish", "unguided",
)  # fmt: skip
MARGIN, GAP = 150, 2


def main() -> None:
    """Write the sheet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--kept", type=Path, required=True)
    parser.add_argument("--client", choices=sorted(CUTS), required=True)
    parser.add_argument("--cut", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--side", type=int, default=96, help="of a picture, in pixels")
    options = parser.parse_args()
    client = client_of(options.client, options.data)
    rows = [("the images", client.held_out[: options.images])]
    for label in LABELS:
        file = options.kept / f"{options.client}-{options.cut}-{label}.npz"
        if file.exists():
            with np.load(file) as kept:
                images = torch.from_numpy(kept["images"])[: options.images]
            rows.append((label.replace("+", " + "), images))
    sheet_of(rows, options.side).save(options.out, quality=88)


def sheet_of(rows: list[tuple[str, Tensor]], side: int) -> Image.Image:
    """Rows of (label, (count, C, H, W) in [0, 1]), small pictures without blur."""
    step = side + GAP
    size = (MARGIN + len(rows[0][1]) * step, len(rows) * step)
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    for place, (label, images) in enumerate(rows):
        pen.text((4, place * step + side // 2 - 6), label, fill="black")
        for column, image in enumerate(images):
            pixels = (image.clamp(0, 1).permute(1, 2, 0) * 255).byte().numpy()
            shown = Image.fromarray(pixels.squeeze())
            smooth = side < shown.height
            way = Image.Resampling.LANCZOS if smooth else Image.Resampling.NEAREST
            sheet.paste(
                shown.resize((side, side), way), (MARGIN + column * step, place * step)
            )
    return sheet


if __name__ == "__main__":
    main()
