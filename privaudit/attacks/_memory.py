"""When memory runs out in a search: fewer images at once, and the reader is told."""

from __future__ import annotations

import gc
import re
from dataclasses import dataclass, field

import torch

_SHORT = ("out of memory", "can't allocate memory", "not enough memory")
"""What allocators say that have no error of their own."""
_ASKED = re.compile(r"allocate ([\d.]+) ?([KMGT]i?B|bytes)")


@dataclass(eq=False)
class Memory:
    """How many images a search takes at once, and what it learnt about memory.

    Attributes:
        together: Images at once; halved whenever that was too many.
        restarts: Of each image, searched together as well.
        notes: For the reader of what was found since.
    """

    together: int
    restarts: int
    notes: list[str] = field(default_factory=list)

    def fell_short(self, error: Exception, size: int) -> str:
        """Halve what is searched at once after a search of ``size`` images broke.

        Returns:
            What happened and what to do, for an image that was alone already.

        Raises:
            Exception: ``error`` itself, where it is about something else.
        """
        if not is_short(error):
            raise error
        happened = f"out of memory with together={size}, restarts={self.restarts}"
        happened += _asked(str(error))
        let_go(error)
        if size == 1:
            return (
                f"{happened}. Fewer restarts need less, and so does a diffusion prior "
                "at a lower resolution or in lower precision"
            )
        self.together = size // 2
        self.notes.append(f"{happened}; the search went on with {self.together}")
        return happened


def is_short(error: Exception) -> bool:
    """Memory ran out, on whichever device."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return any(words in str(error) for words in _SHORT)


def _asked(text: str) -> str:
    found = _ASKED.search(text)
    if found is None:
        return ""
    amount = f"{found[1]} {found[2]}"
    if found[2] == "bytes":
        amount = f"{float(found[1]) / 2**30:.2f} GiB"
    return f" ({amount} more were asked for)"


def let_go(error: BaseException) -> None:
    """Free the tensors of the frames that an error, and what led to it, passed."""
    at: BaseException | None = error
    while at is not None:
        at.__traceback__ = None
        at = at.__context__
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
