"""In-place calls run out of place, and nobody can tell from the values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit._pixels import Normalisation
from privaudit.errors import UnsupportedModelError
from privaudit.exposure import GradientExposure
from privaudit.tape import Recorder
from privaudit.types import Batch

EXPOSURE = GradientExposure(Normalisation())


class Model(nn.Module):
    """A first layer, user code in the middle, a head."""

    def __init__(self, middle: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(12, 8), nn.LazyLinear(3)
        self.middle = middle
        self.head(self.middle(self.first(torch.rand(2, 12))))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.first(x.flatten(1))))  # type: ignore[no-any-return]


def ignored(x: Tensor) -> Tensor:
    F.relu(x, inplace=True)
    return x


def ignored_last(x: Tensor) -> Tensor:
    nn.LeakyReLU(0.3, inplace=True)(x)
    return x


def added(x: Tensor) -> Tensor:
    return x + F.relu(x, inplace=True)


def in_a_list(x: Tensor) -> Tensor:
    F.elu(x, inplace=True)
    return torch.cat([x, x * 2], 1)


def part(x: Tensor) -> Tensor:
    F.relu(x[:, :4], inplace=True)
    return x


def part_seen_earlier(x: Tensor) -> Tensor:
    left = x[:, :4]
    F.relu(x, inplace=True)
    return left * 2


def reshaped(x: Tensor) -> Tensor:
    F.silu(x.view(-1, 2, 4), inplace=True)
    return x


def other_part(x: Tensor) -> Tensor:
    left, right = x[:, :4], x[:, 4:]
    F.relu(left, inplace=True)
    return left * right


def seen_earlier_and_kept(x: Tensor) -> Tensor:
    left = x[:, :4]
    F.silu(x, inplace=True)
    return left * 2


def dropped(x: Tensor) -> Tensor:
    F.dropout(x, 0.0, inplace=True)
    return x


def twice(x: Tensor) -> Tensor:
    F.relu6(x, inplace=True)
    F.threshold(x, 0.1, 0.0, inplace=True)
    return x


def direct(x: Tensor) -> Tensor:
    return x + torch.rrelu_(x, 0.1, 0.3, False)


USES = [ignored, ignored_last, added, in_a_list, part, part_seen_earlier, reshaped,
        other_part, seen_earlier_and_kept, dropped, twice, direct]  # fmt: skip


@pytest.mark.parametrize("middle", USES, ids=lambda f: f.__name__)
def test_the_effect_on_whoever_still_holds_the_old_tensor(
    middle: Callable[[Tensor], Tensor],
) -> None:
    torch.manual_seed(0)
    model, x = Model(middle), torch.rand(2, 3, 2, 2)
    y = torch.tensor([0, 2])
    logits = model(x)
    plain = torch.autograd.grad(F.cross_entropy(logits, y), [*model.parameters()])
    step = EXPOSURE.observe(model, Batch(x, y), seed=0)
    torch.testing.assert_close(step.logits, logits)
    torch.testing.assert_close([*step.observation.gradients.values()], [*plain])


def test_a_model_that_ends_in_an_ignored_in_place_call() -> None:
    class Ends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l, self.act = nn.Linear(12, 3), nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            out = self.l(x.flatten(1))
            self.act(out)
            return {"logits": out}

    model, x = Ends(), torch.rand(4, 3, 2, 2)
    images = Batch(x, torch.tensor([0, 1, 2, 0]))
    step = EXPOSURE.observe(model, images, seed=0)
    assert step.logits is not None
    assert float(step.logits.min()) >= 0.0
    result, _ = EXPOSURE.census(model, Batch(x, None), train=False)
    assert torch.equal(result["logits"], step.logits)
    own = GradientExposure(
        Normalisation(), loss=lambda o, _: o["logits"].square().sum()
    )
    assert own.observe(model, images, seed=0).loss == pytest.approx(
        float(step.logits.square().sum())
    )


M1 = (nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Dropout(0.5, inplace=True))
M2 = (nn.Linear(4, 4), nn.Sigmoid(), nn.Dropout(0.5, inplace=True))


@pytest.mark.parametrize("layers", [M1, M2], ids=["relu", "sigmoid"])
def test_case_13_equals_the_out_of_place_model(layers: tuple[nn.Module, ...]) -> None:
    head = nn.Linear(4, 2)
    nn.init.constant_(layers[0].bias, 2.0)  # type: ignore[arg-type]  # nothing is dead
    model = nn.Sequential(nn.Flatten(), *layers, head).train()
    apart = nn.Sequential(
        nn.Flatten(),
        layers[0],
        nn.ReLU() if isinstance(layers[1], nn.ReLU) else nn.Sigmoid(),
        nn.Dropout(0.5),
        head,
    ).train()
    x, y = torch.rand(3, 1, 2, 2), torch.tensor([0, 1, 1])
    step = EXPOSURE.observe(model, Batch(x, y), seed=4)
    torch.manual_seed(4)
    wanted = torch.autograd.grad(F.cross_entropy(apart(x), y), [*apart.parameters()])
    found = [*step.observation.gradients.values()]
    torch.testing.assert_close(found, [*wanted], rtol=0, atol=1e-6)
    assert [m.inplace for m in layers if hasattr(m, "inplace")] == [
        True for m in layers if hasattr(m, "inplace")
    ]
    guess = Batch(x.clone().requires_grad_(), y)
    again = EXPOSURE.gradient(model, guess, tape=step.tape, create_graph=True)
    (back,) = torch.autograd.grad(again["1.weight"].square().sum(), guess.images)
    assert float(back.abs().max()) > 0


def test_a_model_that_cannot_be_trained_at_all_is_named_as_such() -> None:
    class Bad(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            z = self.l(x.flatten(1)).sigmoid()
            return torch.relu_(torch.relu(z.mul_(2)))

    model = nn.Sequential(Bad(), nn.Linear(2, 2))
    batch = Batch(torch.rand(2, 1, 2, 2), torch.tensor([0, 1]))
    with pytest.raises(
        UnsupportedModelError, match=r"^0\b.*fails in ordinary training as well"
    ):
        EXPOSURE.observe(model, batch, seed=0)


def test_eval_dropout_in_place_returns_its_input() -> None:
    model, x = nn.Dropout(0.5, inplace=True).eval(), torch.rand(2, 3)
    with Recorder(model):
        assert model(x) is x
