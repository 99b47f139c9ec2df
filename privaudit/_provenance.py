"""Where the numbers of a result come from."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from privaudit import __version__
from privaudit.result import Provenance

if TYPE_CHECKING:
    from torch import Tensor, nn

    from privaudit.verdict import Policy

_PACKAGES = (
    "torch", "torchvision", "torchmetrics", "numpy", "scipy", "pydantic", "pillow",
    "timm", "transformers",
)  # fmt: skip


def provenance(
    model: nn.Module, images: Tensor, policy: Policy, *, device: str, seconds: float
) -> Provenance:
    """Versions, digests, machine and time of this run."""
    import torch

    revision, dirty = _git()
    return Provenance(
        privaudit=__version__,
        packages=_packages(),
        python=platform.python_version(),
        platform=platform.platform(),
        processor=_processor(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        memory_gib=_memory(),
        device=device,
        git_revision=revision,
        git_dirty=dirty,
        model_digest=model_digest(model),
        data_digest=tensor_digest(images),
        policy_digest=text_digest(policy.model_dump_json()),
        command=[os.path.basename(sys.argv[0]), *sys.argv[1:]],
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=seconds,
    )


def model_digest(model: nn.Module) -> str:
    """SHA-256 over the names and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted({**_named(model)}.items()):
        digest.update(name.encode())
        digest.update(_bytes(tensor))
    return f"sha256:{digest.hexdigest()}"


def tensor_digest(tensor: Tensor) -> str:
    """SHA-256 over shape and bytes."""
    digest = hashlib.sha256(str(tuple(tensor.shape)).encode())
    digest.update(_bytes(tensor))
    return f"sha256:{digest.hexdigest()}"


def text_digest(text: str) -> str:
    """SHA-256 of a text."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


@functools.cache
def code_digest() -> str:
    """SHA-256 over the source files of this package: versions stay while it changes."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(str(file.relative_to(root)).encode())
        digest.update(file.read_bytes())
    return f"sha256:{digest.hexdigest()}"


def _named(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _bytes(tensor: Tensor) -> memoryview:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _packages() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _git() -> tuple[str | None, bool | None]:
    """Revision of the repository that the audit was started in, if it is one."""
    try:
        head = _run("git", "rev-parse", "HEAD")
        return head.strip(), bool(_run("git", "status", "--porcelain").strip())
    except (OSError, subprocess.SubprocessError):
        return None, None


def _run(*command: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=5, check=True
    )
    return done.stdout


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory() -> float | None:
    try:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None
    return round(pages / 2**30, 1)
