"""What an inventory says about randomness, gradients and what is shared."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit import Auditor, Budget
from privaudit._pixels import Normalisation
from privaudit.errors import UnsupportedModelError
from privaudit.exposure import GradientExposure
from privaudit.inventory import Finding, Inventory
from privaudit.types import Batch

QUICK: dict[str, Any] = {
    "attacks": ["closed_form"],
    "budget": Budget(seconds=20, iterations=2, restarts=1),
}
X, Y = torch.rand(2, 3, 2, 2), torch.tensor([0, 2])


def finding(found: Inventory, code: str) -> Finding:
    (one,) = [f for f in found.findings if f.code == code]
    return one


def codes(found: Inventory) -> set[str]:
    return {f.code for f in found.findings}


def listed(found: Inventory) -> list[tuple[Any, ...]]:
    return [(c.name, c.kind, c.p, c.shape, c.in_eval) for c in found.stochastic]


# ---- case 16: attention dropout that no module scan can see


def test_attention_dropout_of_timm_and_its_masks() -> None:
    vision = pytest.importorskip("timm.models.vision_transformer")
    model = vision.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=5,
        attn_drop_rate=0.3, proj_drop_rate=0.1,
    ).train()  # fmt: skip
    x, y = torch.rand(2, 3, 32, 32), torch.tensor([0, 4])
    found = Auditor(model).inventory((x, y))
    expected: list[tuple[Any, ...]] = []
    for block in ("blocks.0", "blocks.1"):
        expected += [
            (f"{block}.attn#0", "attention-prob dropout", 0.3, [2, 2, 17, 17], False),
            (f"{block}.attn.proj_drop#0", "dropout", 0.1, [2, 17, 32], False),
            (f"{block}.mlp.drop1#0", "dropout", 0.1, [2, 17, 128], False),
            (f"{block}.mlp.drop2#0", "dropout", 0.1, [2, 17, 32], False),
        ]
    active = [c for c in listed(found) if c[2]]
    assert active == expected
    exposure = GradientExposure(Normalisation())
    step = exposure.observe(model, Batch(x, y), seed=0)
    logits = exposure.replay(model, Batch(x, y), step.tape)
    assert logits is not None
    assert step.logits is not None
    torch.testing.assert_close(logits, step.logits, rtol=0, atol=1e-6)
    one = step.tape.select(1, batch_size=2)
    alone = exposure.replay(model, Batch(x[1:], y[1:]), one)
    torch.testing.assert_close(alone, step.logits[1:], rtol=1e-4, atol=1e-5)


def test_multi_head_attention_keeps_its_rate_as_a_number() -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
            self.h = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(2)
            return self.h(self.a(x, x, x)[0].mean(1))  # type: ignore[no-any-return]

    found = Auditor(Attending()).inventory((torch.rand(2, 3, 2, 4), Y))
    ((name, kind, p, shape, _),) = listed(found)
    assert (name, kind, p) == ("a#0", "attention-prob dropout", 0.5)
    assert int(np.prod(shape)) == 2 * 2 * 3 * 3


# ---- case 17: functional dropout


class FD(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(12, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(F.relu(self.a(x.flatten(1))), 0.4, self.training)
        return self.b(F.dropout(x, 0.2))  # type: ignore[no-any-return]


def test_functional_dropout_and_the_one_that_stays_on() -> None:
    found = Auditor(FD()).inventory((X, Y))
    assert listed(found) == [
        ("FD#0", "dropout", 0.4, [2, 16], False),
        ("FD#1", "dropout", 0.2, [2, 16], True),
    ]
    warning = finding(found, "random-in-eval")
    assert warning.severity == "warning"
    assert warning.title == "Dropout active in eval mode"
    assert "FD#1" in warning.where


def test_none_is_said_only_after_a_census() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    found = Auditor(model).inventory((X, Y))
    assert found.stochastic == []
    assert found.census
    assert not Inventory(
        model="", input_shape=[], parameters=0, trainable=0
    ).census  # fmt: skip


def test_attention_dropout_that_is_on_in_eval() -> None:
    class Attn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(2)
            x = F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
            return self.h(x.mean(1))  # type: ignore[no-any-return]

    found = Auditor(Attn()).inventory((X, Y))
    assert listed(found) == [("Attn#0", "attention-prob dropout", 0.5, [2, 3, 3], True)]
    assert "random-in-eval" in codes(found)


def test_a_call_that_only_eval_mode_makes() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(1)
            return self.l(x if self.training else F.dropout(x, 0.3))  # type: ignore[no-any-return]

    found = Auditor(Odd()).inventory((X, Y))
    assert listed(found) == [("Odd#0", "dropout", 0.3, [2, 12], True)]


def test_eval_mode_that_nobody_could_examine_is_not_called_quiet() -> None:
    class Helpless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("runs inside its training step only")

    def step(model: nn.Module, inputs: Tensor, labels: Tensor | None) -> Tensor:
        layer = model.get_submodule("layer")
        return F.cross_entropy(layer(F.dropout(inputs.flatten(1), 0.2)), Y)

    found = Auditor(Helpless(), training_step=step).inventory((X, Y))
    assert "eval-not-examined" in codes(found)
    usual = Auditor(nn.Sequential(nn.Flatten(), nn.Linear(12, 3))).inventory((X, Y))
    assert "eval-not-examined" not in codes(usual)


def test_p_0_is_listed_as_inactive() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.0), nn.Linear(12, 3))
    (call,) = Auditor(model).inventory((X, Y)).stochastic
    assert (call.name, call.active, call.shape) == ("1#0", False, [])


def test_p_1_lets_nothing_through() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.Dropout(1.0),
                          nn.Linear(4, 3))  # fmt: skip
    found = Auditor(model).inventory((X, Y))
    assert finding(found, "drops-everything").title == "Nothing passes this layer"


def test_drop_path_and_the_zero_gradient_of_a_dropped_block() -> None:
    drop = pytest.importorskip("timm.layers").DropPath(0.5)

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.drop, self.h = nn.Linear(12, 12), drop, nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(1)
            return self.h(x + self.drop(self.block(x)))  # type: ignore[no-any-return]

    model, exposure = Residual().train(), GradientExposure(Normalisation())
    seen = set()
    for seed in range(8):
        step = exposure.observe(model, Batch(X[:1], Y[:1]), seed=seed)
        (draw,) = step.tape
        assert (draw.name, draw.kind, draw.p) == ("drop#0", "drop path", 0.5)
        assert draw.value is not None
        kept = bool(draw.value.item())
        assert bool(step.observation.gradients["block.weight"].any()) == kept
        again = exposure.replay(model, Batch(X[:1], Y[:1]), step.tape)
        assert again is not None
        assert step.logits is not None
        assert torch.equal(again, step.logits)
        seen.add(kept)
    assert seen == {True, False}


# ---- case 48: randomness that is not dropout


class N(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l, self.r = nn.Linear(12, 4), nn.RReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.l(x.flatten(1))
        x = self.r(x + 0.1 * torch.randn_like(x))
        return x * (random.random() < 0.5) if self.training else x


def test_noise_is_listed_and_python_randomness_has_an_owner() -> None:
    found = Auditor(N()).inventory((X, Y))
    assert listed(found) == [
        ("N#0", "noise: randn_like", None, [2, 4], True),
        ("r#0", "noise: rrelu", None, [2, 4], False),
    ]
    assert finding(found, "random-in-eval").title == "Noise active in eval mode"
    outside = finding(found, "randomness-outside-torch")
    assert outside.where == "N"
    assert "after replay: randomness outside torch in `N`" in outside.text


def test_numpy_randomness_names_the_part_that_draws() -> None:
    class Part(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * float(np.random.rand())

    model = nn.Sequential(nn.Flatten(), Part(), nn.Linear(12, 3))
    found = Auditor(model).inventory((X, Y))
    assert finding(found, "randomness-outside-torch").where == "1"


def test_no_randomness_outside_torch_where_there_is_none() -> None:
    assert "randomness-outside-torch" not in codes(Auditor(FD()).inventory((X, Y)))


class LayerDrop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l, self.h = nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if self.training and bool(torch.rand([]) < 0.5):
            return self.h(x)  # type: ignore[no-any-return]
        return self.h(self.l(x).relu())  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", range(4))
def test_layer_drop_takes_the_same_way_again(seed: int) -> None:
    model, exposure = LayerDrop().train(), GradientExposure(Normalisation())
    step = exposure.observe(model, Batch(X, Y), seed=seed)
    assert [(d.name, d.kind) for d in step.tape] == [("LayerDrop#0", "noise: rand")]
    again = exposure.gradient(model, Batch(X, Y), tape=step.tape)
    assert again.keys() == step.observation.gradients.keys()
    assert all(torch.equal(again[n], g) for n, g in step.observation.gradients.items())


def test_a_pool_and_a_gumbel_softmax_that_draw() -> None:
    class Drawing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pool = nn.FractionalMaxPool2d(2, output_size=2)
            self.h = nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            return F.gumbel_softmax(self.h(self.pool(x).flatten(1)))

    found = Auditor(Drawing()).inventory((torch.rand(2, 3, 4, 4), Y))
    assert [(c.name, c.kind, c.hidden) for c in found.stochastic] == [
        ("pool#0", "noise: rand", True),
        ("Drawing#0", "noise: gumbel_softmax", False),
    ]
    assert finding(found, "hidden-draw").where == "pool#0"


@pytest.mark.filterwarnings("ignore:dropout option adds dropout:UserWarning")
def test_recurrent_dropout_is_seen_between_layers_only() -> None:
    class Reads(nn.Module):
        def __init__(self, layers: int) -> None:
            super().__init__()
            self.l = nn.LSTM(4, 4, num_layers=layers, dropout=0.5, batch_first=True)
            self.h = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.h(self.l(x.flatten(2))[0][:, -1])  # type: ignore[no-any-return]

    found = Auditor(Reads(2)).inventory((X, Y))
    ((name, kind, p, _, _),) = listed(found)
    assert (name, kind, p) == ("l#0", "LSTM inter-layer dropout", 0.5)
    one = Auditor(Reads(1)).inventory((X, Y))
    assert listed(one) == []
    assert "has no effect" in finding(one, "dropout-without-effect").text


# ---- case 42: gradients that are not numbers


def test_a_gradient_that_is_not_finite_names_its_layer() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(12, 3)
            nn.init.zeros_(self.l.weight)
            nn.init.zeros_(self.l.bias)

        def forward(self, x: Tensor) -> Tensor:
            return self.l(x.flatten(1)).square().sqrt()  # type: ignore[no-any-return]

    with pytest.raises(UnsupportedModelError, match=r"^l\.weight: .*finite gradient"):
        Auditor(Root(), **QUICK).audit((X, Y))


def test_a_second_derivative_that_is_nan_is_no_verdict() -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(2).norm(dim=2) * self.scale  # type: ignore[no-any-return]

    result = Auditor(Norm(), **QUICK).audit((torch.zeros(2, 3, 4, 4), Y))
    assert result.verdict.word not in ("leaks", "no leak found")


# ---- case 43: gradients that are zero


def dead() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 3))
    nn.init.constant_(model.get_parameter("1.bias"), -100.0)
    return model


class Saturated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(192, 3)
        with torch.no_grad():
            self.l.weight.zero_()
            self.l.bias.copy_(torch.tensor([1.0, 0.0, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.l(x.flatten(1)) * 500  # type: ignore[no-any-return]


def zero_head() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 3))
    nn.init.zeros_(model.get_parameter("3.weight"))
    return model


BIG = torch.rand(1, 3, 8, 8)


def test_dead_units_say_nothing_about_other_batches() -> None:
    result = Auditor(dead(), **QUICK).audit((BIG, [0]))
    found = finding(result.record.inventory, "dead-layer")
    assert found.where == "1"
    assert "gradient of 1 is zero for all samples (dead units)" in found.text
    assert "says nothing about other batches" in found.text
    assert "no-gradient-behind-head" not in codes(result.record.inventory)
    assert result.verdict.word not in ("leaks", "no leak found")


def test_saturated_logits_leave_no_information() -> None:
    result = Auditor(Saturated(), **QUICK).audit((BIG, [0]))
    found = finding(result.record.inventory, "zero-gradient")
    assert "no information in this gradient" in found.text
    assert "nothing about other batches" in found.text
    assert result.verdict.word not in ("leaks", "no leak found")


def test_a_head_of_zeros_is_how_a_first_step_looks() -> None:
    result = Auditor(zero_head(), **QUICK).audit((BIG, [0]))
    found = finding(result.record.inventory, "no-gradient-behind-head")
    assert found.where == "3"
    assert "not safety" in found.text
    assert result.verdict.word not in ("leaks", "no leak found")


# ---- the checks that every audit makes of itself


class Unrecorded(nn.Module):
    """Draws from Python, so that no tape can put it back."""

    def __init__(self) -> None:
        super().__init__()
        self.l, self.h = nn.Linear(192, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.h(self.l(x.flatten(1)) * (1 + random.random()))  # type: ignore[no-any-return]


def test_a_step_that_cannot_be_recomputed_is_said_and_never_clean() -> None:
    result = Auditor(Unrecorded(), **QUICK).audit((BIG, [0]))
    check = result.record.preflight
    assert check.loss_at_truth is not None
    assert check.loss_at_truth > 1e-3
    assert len(check.notes) == 2
    assert {"loss-at-truth", "randomness-outside-torch"} <= codes(
        result.record.inventory
    )
    assert result.verdict.word != "no leak found"


def test_an_operator_without_a_second_derivative_is_named() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l, self.e = nn.Linear(12, 3), nn.EmbeddingBag(5, 3, mode="mean")

        def forward(self, x: Tensor) -> Tensor:
            return self.l(x.flatten(1)) * self.e(torch.tensor([[0, 1], [2, 3]]))  # type: ignore[no-any-return]

    result = Auditor(Bag(), **QUICK).audit((X, Y))
    assert "_embedding_bag_backward" in result.record.preflight.double_backward
    found = finding(result.record.inventory, "no-second-derivative")
    assert "_embedding_bag_backward" in found.text
    assert result.verdict.word != "no leak found"
