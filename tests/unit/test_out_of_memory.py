"""A search that runs out of memory goes on with fewer images, and says so."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from privaudit.attacks._descend import Row
from privaudit.attacks._feature_search import FeaturePlan, Part, search_features
from privaudit.config import Budget
from privaudit.types import Reconstruction
from tests.contract.feature_cases import SHAPE, FeatureCase, feature_case

ON_CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free."
ON_CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
    "memory: you tried to allocate 4294967296 bytes. Error code 12"
)


def row(number: float) -> Row:
    image = torch.full((1, *SHAPE), number)
    return Row(image, 1.0, 2.0, 1.0, 5, "iterations", [(1, 2.0)], [])


class Hungry:
    """A search that breaks for more than ``room`` rows, or for some images."""

    def __init__(
        self, room: int, error: Callable[[], Exception], never: tuple[int, ...] = ()
    ):
        self.room, self.error, self.never = room, error, never
        self.asked: list[tuple[int, int]] = []
        self.held: list[weakref.ref[Tensor]] = []
        self.kept_alive = 0
        self.seeds: list[int] = []

    def __call__(self, part: Part) -> tuple[list[Row], int]:
        gc.collect()
        self.kept_alive += sum(ref() is not None for ref in self.held)
        numbers = range(part.rows.start, part.rows.stop)
        self.asked.append((part.rows.start, part.rows.stop))
        self.seeds.append(int(torch.randint(2**40, (), generator=part.generator)))
        held = torch.zeros(10)
        self.held.append(weakref.ref(held))
        rows = len(numbers) * part.restarts
        if rows > self.room or any(n in self.never for n in numbers):
            raise self.error()
        return [row(n / 10) for _ in range(part.restarts) for n in numbers], 7


def searched(
    search: Hungry, count: int, *, together: int = 4, restarts: int = 1
) -> list[Reconstruction]:
    case: FeatureCase = feature_case("nchw", count)
    plan = FeaturePlan(search, together=together, restarts=restarts)
    return search_features(
        case.target, case.observation, plan=plan, budget=Budget(),
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip


def cuda() -> Exception:
    return torch.OutOfMemoryError(ON_CUDA)


def cpu() -> Exception:
    return RuntimeError(ON_CPU)


@pytest.mark.parametrize(
    ("error", "amount"), [(cuda, "2.00 GiB"), (cpu, "4.00 GiB"), (MemoryError, "")]
)
def test_it_goes_on_with_half_as_many(
    error: Callable[[], Exception], amount: str
) -> None:
    search = Hungry(2, error)
    found = searched(search, 5)
    assert search.asked == [(0, 4), (0, 2), (2, 4), (4, 5)]
    assert search.kept_alive == 0
    assert [one.state for one in found] == ["plateau"] * 5
    for index, one in enumerate(found):
        assert one.images is not None
        assert float(one.images.mean()) == pytest.approx(index / 10)
        (note,) = one.notes
        asked = f" ({amount} more were asked for)" if amount else ""
        assert note == (
            f"out of memory with together=4, restarts=1{asked}; the search went on "
            "with 2"
        )


def test_every_part_draws_the_same_numbers_however_small() -> None:
    search = Hungry(2, cuda)
    searched(search, 5)
    assert len(set(search.seeds)) == 1


def test_an_image_that_does_not_fit_alone_fails_and_the_others_are_kept() -> None:
    search = Hungry(9, cuda, never=(2,))
    found = searched(search, 4, restarts=2)
    assert [one.state for one in found] == ["plateau", "plateau", "failed", "plateau"]
    assert re.search(
        r"together=1, restarts=2 \(2.00 GiB more were asked for\). Fewer restarts",
        found[2].reason,
    )
    assert found[2].images is None
    assert len(found[3].notes) == 2


def test_images_that_were_done_before_carry_no_note() -> None:
    found = searched(Hungry(9, cuda, never=(3,)), 4, together=2)
    assert [len(one.notes) for one in found] == [0, 0, 1, 1]


def test_another_error_is_not_taken_for_it() -> None:
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        searched(Hungry(1, lambda: RuntimeError("shapes do not fit")), 2)
