"""What the attacker of split inference sees, knows, and does not know."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from privaudit.result import PriorCard, SplitRecord, ThreatModel


def feature_threat_model(
    split: SplitRecord,
    *,
    public: Tensor | None,
    priors: Sequence[str],
    cards: Sequence[PriorCard] = (),
) -> ThreatModel:
    """The threat model that every number of a split audit holds for.

    Args:
        split: Where the model was cut.
        public: Images of the attacker's own; None: it has none.
        priors: Names of what else it was handed.
        cards: Of the generative priors that its attacks drew from.
    """
    shape = " × ".join(map(str, split.shape))
    knows = ["both halves of the model and their weights", "mean and std of the images"]
    if public is not None:
        knows.append(f"{len(public)} images of its own of the same kind")
    drawn = ("diffusion", "gan") if cards else ()
    knows += [f"a prior: {name}" for name in priors if name not in drawn]
    knows += [
        f"what other images look like: the prior {name}, learnt from {source}"
        for name, source in dict.fromkeys((c.name, c.learnt_from) for c in cards)
    ]
    return ThreatModel(
        exposure=f"features at {split.name} of split inference",
        attacker="honest-but-curious server of a split model",
        sees=[
            f"the features of each image: {shape} values, "
            f"{split.bytes_per_image:,} bytes"
        ],
        knows=knows,
        does_not_know=["the images", "their labels"],
    )
