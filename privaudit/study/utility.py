"""What a model is still worth behind a defense."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from privaudit._pixels import Normalisation
from privaudit._provenance import tensor_digest
from privaudit._resume import code_of
from privaudit.errors import ConfigError, UnsupportedModelError
from privaudit.exposure import output

Utility = Callable[[nn.Module], float]
"""model → a number, larger being better."""


def accuracy(
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
) -> Utility:
    """Share of images that a classifier gets right, as a utility.

    Args:
        batches: (images, class ids), read anew each time it is asked: a list or a
            DataLoader, no generator.
        mean: Per channel, where the images are in [0, 1] and the model wants them
            normalised.
        std: Likewise.

    Raises:
        ConfigError: There are no images, or ``batches`` can be read only once.

    Example:
        >>> import torch
        >>> always_first = torch.nn.Sequential(torch.nn.Flatten())
        >>> images = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> accuracy([(images, torch.tensor([0, 0]))])(always_first)
        0.5
    """
    if iter(batches) is batches:
        raise ConfigError(
            "accuracy(batches)",
            expected="batches that can be read again, such as a list or a DataLoader",
            got=type(batches).__name__,
            hint="Every defense is measured on the same images: pass list(batches).",
        )
    normalise = Normalisation.of(mean, std)

    def measured(model: nn.Module) -> float:
        right = total = 0
        place = next(model.parameters(), torch.empty(0)).device
        with torch.no_grad():
            for images, labels in batches:
                inputs = normalise.apply(images.to(place))
                result = model(inputs)
                logits = output.logits(result, type(model).__name__)
                right += int((logits.argmax(-1).cpu() == labels.cpu()).sum())
                total += len(labels)
        if not total:
            raise ConfigError(
                "accuracy(batches)", expected="some images", got="none",
                hint="Check the folder or the loader.",
            )  # fmt: skip
        return right / total

    measured.batches = batches  # type: ignore[attr-defined]  # what_of() reads it
    return measured


def what_of(utility: Utility | None) -> list[str]:
    """What a utility is, as far as it shows: its code, and of accuracy its images.

    Another one of the same name is another number.
    """
    images = getattr(utility, "batches", None)
    if images is None:
        return [code_of(utility)]
    first = next(iter(images), None)
    digest = "none" if first is None else tensor_digest(first[0])
    return [code_of(utility), digest]


def measured(utility: Utility, model: nn.Module) -> float:
    """The utility of ``model``, in eval mode, which comes back as it was.

    Raises:
        UnsupportedModelError: It raised, or gave no finite number.
    """
    modes = [(m, m.training) for m in model.modules()]
    name = getattr(utility, "__qualname__", type(utility).__name__)
    try:
        model.eval()
        value: Any = utility(model)
        number = float(value)
    except ConfigError:
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"utility {name}",
            expected="a number",
            got=f"{type(error).__name__}: {error}",
            hint="The row is kept without a utility; mend the function and run again.",
        ) from error
    finally:
        for module, training in modes:
            module.training = training
    if not math.isfinite(number):
        raise UnsupportedModelError(
            f"utility {name}", expected="a finite number", got=str(number),
            hint="The row is kept without a utility; mend the function and run again.",
        )  # fmt: skip
    return number
