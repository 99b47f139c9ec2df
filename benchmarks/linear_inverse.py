"""How well and how fast ``linear_inverse`` sees through shallow cuts. Prints JSON.

Natural photographs of 224 x 224 pixels, architectures of the papers with weights as
they are initialised. Run it from the repository, with the images of
``PRIVAUDIT_SHARED`` (default: ``../shared``)::

    python benchmarks/linear_inverse.py --images 8 --out linear_inverse.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from privaudit._pixels import to_png
from tests.reference import linear_cases


def main() -> int:
    """Run every cut, show progress on stderr, print the record."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    images = linear_cases.photographs(arguments.images)
    if images is None:
        print("no images: set PRIVAUDIT_SHARED", file=sys.stderr)
        return 2
    rows = []
    for case in linear_cases.CASES:
        if arguments.only not in case.name:
            continue
        result = linear_cases.attack_case(case, images)
        rows.append(result.row())
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        if arguments.sheets is not None:
            _sheet(arguments.sheets, images, result)
    text = json.dumps({"threads": arguments.threads, "cuts": rows}, indent=2)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    return 0


def _sheet(
    folder: Path, images: torch.Tensor, result: linear_cases.LinearResult
) -> None:
    """Originals above, reconstructions below."""
    folder.mkdir(parents=True, exist_ok=True)
    both = [torch.cat(list(part), -1) for part in (images[:4], result.images[:4])]
    name = "".join(c if c.isalnum() else "_" for c in result.case.name)
    (folder / f"{name}.png").write_bytes(to_png(torch.cat(both, -2)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--only", default="", help="part of a cut's name")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument("--sheets", type=Path, help="folder for pictures")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
