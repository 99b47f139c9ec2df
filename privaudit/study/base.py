"""What many audits together are: something that can be saved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path


class Study(ABC):
    """A finished study with its pictures.

    Attributes:
        computed: Cells that were computed just now; the others were there.
    """

    computed: int

    @abstractmethod
    def save(self, path: str | Path) -> Path:
        """Write what was found.

        Raises:
            ReportError: The place cannot be written.
        """
