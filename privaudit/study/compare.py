"""Defenses side by side: what does each buy against an attacker who knows of it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F

from privaudit.defenses import TrainData
from privaudit.errors import ConfigError
from privaudit.session.subject import Subject
from privaudit.study.base import Study
from privaudit.study.compare_result import ComparisonResult
from privaudit.study.compare_run import Comparison, Given
from privaudit.study.federated import FederatedTraining
from privaudit.study.store import Store
from privaudit.study.utility import Utility

if TYPE_CHECKING:
    from privaudit.attacks import Attack, FeatureAttack


@dataclass(frozen=True, eq=False)
class DefenseStudy(Study):
    """A finished comparison with its pictures.

    Attributes:
        result: The record.
        pictures: Per row ``original``, ``naive`` and ``adaptive``, (images, C, H, W).
        computed: Cells that were computed just now; the others were there.
    """

    result: ComparisonResult
    pictures: dict[str, dict[str, Any]]
    computed: int

    def save(self, path: str | Path) -> Path:
        """Write ``.html``, ``.json`` or ``.md``, or all three into a folder.

        Raises:
            ReportError: Another suffix, or the place cannot be written.
        """
        from privaudit.study import compare_page

        return compare_page.write(self.result, self.pictures, Path(path))


def compared(
    subject: Subject,
    sample: Any,
    defenses: Sequence[Given],
    *,
    attacks: Sequence[Attack],
    feature_attacks: Sequence[FeatureAttack],
    train_data: Any = None,
    utility: Utility | None = None,
    out: str | Path | None = None,
    training: FederatedTraining | None = None,
) -> DefenseStudy:
    """Measure each defense. See ``Auditor.compare_defenses``."""
    made = Comparison(
        subject,
        sample,
        attacks,
        feature_attacks,
        utility,
        None if train_data is None else data_of(train_data, subject),
        training or FederatedTraining(),
        None if out is None else Store(out),
    )
    result = made.run(defenses)
    return DefenseStudy(result, made.pictures, made.computed)


def data_of(given: Any, subject: Subject) -> TrainData:
    """Batches of (images in [0, 1], labels), which can be read again.

    Raises:
        ConfigError: They cannot, or images are not in [0, 1].
    """
    if isinstance(given, TrainData):
        return given
    batches = given if callable(given) else (lambda: given)
    if not callable(given) and iter(given) is given:
        raise ConfigError(
            "compare_defenses(train_data)",
            expected="batches that can be read again, such as a list or a DataLoader",
            got=type(given).__name__,
            hint="Every defense learns from the same images: pass list(batches).",
        )
    first = next(iter(batches()), None)
    images = None if first is None else first[0]
    low, high = (0.0, 0.0) if images is None else map(float, images.aminmax())
    if images is None or not 0 <= low <= high <= 1:
        raise ConfigError(
            "compare_defenses(train_data)",
            expected="batches of (images in [0, 1], labels)",
            got="none" if images is None else f"values in [{low:.2f}, {high:.2f}]",
            hint="Leave normalisation to mean= and std= of the Auditor.",
        )
    loss = subject.callables[0] or F.cross_entropy
    return TrainData(batches, loss)
