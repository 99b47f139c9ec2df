"""Cutting a model by name: the right call, the right element, nothing else changed.

Cases 26 and 27 of the hard cases, and their kin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit.config import Split
from privaudit.errors import ConfigError
from privaudit.exposure import Cut, check_cut, resolve

X = torch.rand(2, 4, generator=torch.Generator().manual_seed(3))


class Twice(nn.Module):
    """Case 18's model: one layer at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.l, self.d = nn.Linear(4, 4), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.d(F.relu(self.l(self.d(F.relu(self.l(x))))))  # type: ignore[no-any-return]


class Layers(nn.Module):
    """One block after another."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(4, 4), blocks[0], nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.block(self.first(x)))  # type: ignore[no-any-return]


def sent_at(model: nn.Module, split: Split | str, x: Tensor = X) -> Tensor:
    return resolve(model, split, lambda: model(x)).capture(model, lambda: model(x))


def finished(model: nn.Module, split: Split | str, x: Tensor = X) -> Any:
    """The tail from what was sent, run on quite another input."""
    cut = resolve(model, split, lambda: model(x))
    sent = cut.capture(model, lambda: model(x))
    return cut.finish(model, lambda: model(torch.zeros_like(x)), sent)


# ---- which place


def test_a_module_by_its_name() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    assert torch.equal(sent_at(model, "1"), F.relu(model[0](X)))
    assert torch.equal(finished(model, "1"), model(X))


def test_called_twice_has_to_be_told_apart() -> None:
    model = Twice().eval()
    with pytest.raises(ConfigError, match=r"`l` is called 2 times in forward") as error:
        resolve(model, "l", lambda: model(X))
    assert "Choose `l#0` or `l#1`" in error.value.hint
    first, second = sent_at(model, "l#0"), sent_at(model, "l#1")
    assert torch.equal(first, model.l(X))
    assert torch.equal(second, model.l(F.relu(first)))
    assert resolve(model, "l#1", lambda: model(X)).name == "l#1"
    with pytest.raises(ConfigError, match="2 call"):
        resolve(model, "l#2", lambda: model(X))


@pytest.mark.parametrize("call", [0, 1])
def test_only_the_chosen_call_is_replaced(call: int) -> None:
    model = Twice().eval()
    cut = resolve(model, f"l#{call}", lambda: model(X))
    other = torch.full((2, 4), 0.3)
    tail = F.relu(other) if call else F.relu(model.l(F.relu(other)))
    assert torch.equal(cut.finish(model, lambda: model(X), other), tail)
    assert check_cut(model, cut, model, X).complete


class Albert(nn.Module):
    """One block, used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.block(x)
        return x


def test_a_stack_that_shares_its_block() -> None:
    model = Albert()
    with pytest.raises(ConfigError, match="called 3 times") as error:
        resolve(model, "block", lambda: model(X))
    assert "`block#2`" in error.value.hint
    assert torch.equal(sent_at(model, "block#1"), model.block(model.block(X)))
    assert torch.equal(finished(model, "block.0#2"), model(X))


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(4, 3)})
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.branches["a"](x))  # type: ignore[no-any-return]


def test_a_branch_not_taken() -> None:
    with pytest.raises(ConfigError, match=r"`branches\.b` was not executed for this"):
        sent_at(Branches(), "branches.b")


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'branches\.c'") as error:
        sent_at(Branches(), "branches.c")
    assert "nearest names are branches.b, branches.a" in error.value.hint
    with pytest.raises(ConfigError, match="begin with branches") as error:
        sent_at(Branches(), "qqqq")
    assert "split_candidates()" in error.value.hint


class Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x[:, None, :].expand(-1, 3, -1)
        return self.self_attn(tokens, tokens, tokens)[0].mean(1)  # type: ignore[no-any-return]


def test_weights_used_without_a_call_point_to_the_whole() -> None:
    with pytest.raises(ConfigError, match=r"`self_attn` around it was") as error:
        sent_at(Projected(), "self_attn.out_proj")
    assert "Choose `self_attn`" in error.value.hint


def test_forward_called_directly_is_no_call() -> None:
    direct = Direct(nn.Linear(4, 4))
    with pytest.raises(ConfigError, match="`inner` was not executed"):
        sent_at(direct, "inner")


class Direct(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner.forward(x)  # type: ignore[no-any-return]


def test_a_module_under_two_names() -> None:
    layer = nn.Linear(4, 4)
    model = Layers(nn.Sequential(layer))
    model.again = model.first
    assert torch.equal(sent_at(model, "again"), sent_at(model, "first"))


class TimeFirst(nn.Module):
    """torch's encoder as it is by default: (time, batch, channels)."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(4, 8), nn.Linear(8, 3)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False
        )

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.into(x).transpose(0, 1)
        return self.out(self.encoder(tokens).mean(0))  # type: ignore[no-any-return]


@pytest.mark.parametrize("images", [1, 2, 5])
def test_time_first_is_turned_around(images: int) -> None:
    model, x = TimeFirst().eval(), torch.rand(images, 6, 4)
    sent = sent_at(model, "encoder.layers.0", x)
    assert sent.shape == (images, 6, 8)
    alone = sent_at(model, "encoder.layers.0", x[-1:])
    assert torch.allclose(sent[-1:], alone, atol=1e-6)
    assert torch.equal(finished(model, "encoder.layers.0", x), model(x))
    cut = resolve(model, "encoder.layers.0", lambda: model(x))
    assert isinstance(cut, Cut)
    assert cut.batch_axis == 1
    assert check_cut(model, cut, model, x).complete


# ---- which element


class Named(NamedTuple):
    first: Tensor
    second: Tensor


@dataclass
class Record:
    ids: Tensor
    hidden: Tensor | None


class Puts(nn.Module):
    """Puts out a structure of one kind."""

    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> Any:
        return self.make(x)


class Structured(nn.Module):
    """Reads the structure back with ``take``."""

    def __init__(
        self, make: Callable[[Tensor], Any], take: Callable[[Any], Tensor]
    ) -> None:
        super().__init__()
        self.first, self.block, self.take = nn.Linear(4, 4), Puts(make), take
        self.seen: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        out = self.block(self.first(x))
        self.seen[:] = [out]
        return self.take(out)


def model_output(x: Tensor) -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=x, attentions=None)


STRUCTURES: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor], str]] = {
    "one-element tuple": (lambda x: (x,), lambda o: o[0], "element 0 of 1"),
    "tuple": (lambda x: (x, None, 2 * x), lambda o: o[0], "element 0 of 3"),
    "list": (lambda x: [None, x], lambda o: o[1], "element 1 of 2"),
    "integers first": (
        lambda x: (x.argmax(1), x), lambda o: o[1], "element 1 of 2"),
    "scalar first": (lambda x: (x.sum(), x), lambda o: o[1], "element 1 of 2"),
    "named tuple": (lambda x: Named(x, x), lambda o: o.first, "element 0 of 2"),
    "dict": (lambda x: {"feat": x, "pos": None}, lambda o: o["feat"],
             "entry 'feat' of 2"),
    "dataclass": (lambda x: Record(x.argmax(1), x), lambda o: o.hidden,
                  "entry 'hidden' of 2"),
    "model output": (model_output, lambda o: o.last_hidden_state,
                     "entry 'last_hidden_state' of 1"),
}  # fmt: skip


@pytest.mark.parametrize("kind", STRUCTURES)
def test_the_main_tensor_is_chosen_by_rule_and_stated(kind: str) -> None:
    make, take, words = STRUCTURES[kind]
    model = Structured(make, take)
    cut = resolve(model, "block", lambda: model(X))
    assert cut.chosen == f"{words}, shape (2, 4)"
    sent = cut.capture(model, lambda: model(X))
    assert torch.equal(sent, model.first(X))
    [finding] = check_cut(model, cut, model, X).findings[:1]
    assert (finding.code, words in finding.text) == ("split-element", True)


@pytest.mark.parametrize("kind", STRUCTURES)
def test_the_rest_is_rebuilt_with_its_types(kind: str) -> None:
    make, take, _ = STRUCTURES[kind]
    model = Structured(make, take)
    other = torch.full((2, 4), 0.3)
    cut = resolve(model, "block", lambda: model(X))
    assert torch.equal(cut.finish(model, lambda: model(X), other), other)
    assert type(model.seen[0]) is type(make(X))
    model(X)
    assert torch.equal(finished(model, "block"), model(X))


def test_the_rest_keeps_its_values() -> None:
    model = Structured(lambda x: (x, "kept", [1]), lambda o: o[0])
    cut = resolve(model, "block", lambda: model(X))
    cut.finish(model, lambda: model(X), torch.zeros(2, 4))
    assert model.seen[0][1:] == ("kept", [1])


def test_another_element_by_select() -> None:
    model = Structured(lambda x: {"a": x, "b": 3 * x}, lambda o: o["a"] + o["b"])
    cut = resolve(model, Split("block", select="b"), lambda: model(X))
    assert torch.equal(cut.capture(model, lambda: model(X)), 3 * model.first(X))
    found = check_cut(model, cut, model, X)
    assert not found.complete
    assert "split-incomplete" in [f.code for f in found.findings]


@pytest.mark.parametrize(
    ("make", "select", "text"),
    [
        (lambda x: {"a": x}, "b", "'a': float32 of shape"),
        (lambda x: (x, None), 1, "1: NoneType"),
        (lambda x: x, 0, "got float32 of shape"),
        (lambda _: None, None, "got NoneType"),
        (lambda _: (None, "text"), None, "tuple with 0: NoneType, 1: str"),
        (lambda x: x.argmax(1), None, "got int64 of shape"),
        (lambda x: (x.argmax(1),), 0, "int64 of shape"),
    ],
)
def test_what_cannot_be_sent(
    make: Callable[[Tensor], Any], select: int | str | None, text: str
) -> None:
    model = Structured(make, lambda _: X)
    with pytest.raises(ConfigError, match=text):
        resolve(model, Split("block", select=select), lambda: model(X))


def test_attention_inside_an_encoder_layer() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.rand(2, 5, 8)
    cut = resolve(model, "self_attn", lambda: model(x))
    assert cut.chosen == "element 0 of 2, shape (2, 5, 8)"
    sent = cut.capture(model, lambda: model(x))
    with torch.no_grad():
        attended = model.self_attn(x, x, x, need_weights=False)[0]
    assert torch.allclose(sent, attended, atol=1e-6)


def test_a_recurrent_layer() -> None:
    model = nn.Sequential(nn.LSTM(4, 4, batch_first=True), Puts(lambda o: o[0]))
    x = torch.rand(2, 3, 4)
    assert sent_at(model, "0", x).shape == (2, 3, 4)
    assert torch.equal(finished(model, "0", x), model(x))
