"""How well and how fast ``closed_form`` sees through dropout. Prints JSON, Markdown.

All 16 cells of Scheliga 2023 (64 victims each, batch 1, masks unknown), and natural
photographs through torchvision's ViT-B/16, with its head as in training and with the
zero head of a fresh build. Run it from the repository, with the images of
``PRIVAUDIT_SHARED`` (default: ``../shared``)::

    python benchmarks/closed_form.py --out closed_form.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from privaudit import Auditor
from tests.reference import cells


def main() -> int:
    """Run every cell, show progress on stderr, print the table."""
    arguments = _arguments()
    folder = cells.shared_data()
    if folder is None:
        print("no images: set PRIVAUDIT_SHARED", file=sys.stderr)
        return 2
    torch.set_num_threads(arguments.threads)
    results = []
    for cell in cells.CELLS if arguments.victims else []:
        results.append(cells.attack_cell(cell, folder, arguments.victims))
        _progress(results[-1])
    record: dict[str, Any] = {"threads": arguments.threads}
    if arguments.photographs:
        results.append(_photographs(cells.photographs(folder, arguments.photographs)))
        _progress(results[-1])
        record["zero_head"] = zero_head(cells.photographs(folder, 1))
    record["cells"] = [_row(r) for r in results]
    text = json.dumps(record, indent=2)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    print(markdown(results))
    return 0


def _photographs(images: torch.Tensor) -> cells.CellResult:
    name = "torchvision vit_b_16 224 p=0.1"
    labels = torch.arange(len(images)) * 31 % 1000
    return cells.attack_all(name, cells.vit_b_16(), images, labels, cells.IMAGENET)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--victims", type=int, default=64, help="per cell; 0: none")
    parser.add_argument("--photographs", type=int, default=30, help="0: none")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON file")
    return parser.parse_args()


def zero_head(images: torch.Tensor) -> dict[str, Any]:
    """What an audit says of a ViT as torchvision builds it: a head of zeros."""
    normal = cells.IMAGENET
    auditor = Auditor(
        cells.vit_b_16(zero_head=True),
        mean=normal.mean,
        std=normal.std,
        attacks=["closed_form"],
    )
    result = auditor.audit((images, torch.tensor([207])))
    return {
        "word": result.verdict.word,
        "exit_code": result.verdict.exit_code,
        "line": result.verdict.line,
        "findings": [f.code for f in result.record.inventory.findings],
        "causes": [c.code for c in result.verdict.causes],
    }


def _row(result: cells.CellResult) -> dict[str, Any]:
    return {
        "cell": result.name,
        "victims": len(result.ssim),
        "ssim_mean": result.mean,
        "ssim_min": result.worst,
        "seconds_median": result.median_seconds,
        "states": result.states,
        "forms": result.forms,
    }


def _progress(result: cells.CellResult) -> None:
    print(json.dumps(_row(result)), file=sys.stderr, flush=True)


def markdown(results: list[cells.CellResult]) -> str:
    """One line per cell."""
    lines = ["| cell | n | mean SSIM | min SSIM | s/victim (median) | states |"]
    lines.append("|---|---|---|---|---|---|")
    for r in results:
        states = ", ".join(f"{k} {v}" for k, v in sorted(r.states.items()))
        lines.append(
            f"| {r.name} | {len(r.ssim)} | {r.mean:.5f} | {r.worst:.5f} "
            f"| {r.median_seconds:.3f} | {states} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
