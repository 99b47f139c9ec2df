"""What the engine believes about torch. A new torch that differs turns these red."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from privaudit.tape import Draw, Recorder, Tape, wrappers
from tests.unit.test_tape import record, replay


class Attending(nn.Module):
    def __init__(self, p: float, need_weights: bool) -> None:
        super().__init__()
        self.a = nn.MultiheadAttention(8, 2, dropout=p, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x, x, x, need_weights=self.need_weights)[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_dropout_inside_multi_head_attention(need_weights: bool) -> None:
    model, x = Attending(0.5, need_weights).train(), torch.randn(3, 5, 8)
    out, tape = record(model, x)
    (draw,) = tape
    assert (draw.name, draw.kind, draw.p) == ("a#0", "attention-prob dropout", 0.5)
    assert draw.value is not None
    assert draw.value.numel() == 3 * 2 * 5 * 5
    assert not draw.hidden
    assert torch.equal(replay(model, x, tape), out)
    torch.manual_seed(0)
    torch.testing.assert_close(model(x), out)


def test_encoder_layer_shows_all_four_of_its_dropouts() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True).train()
    x = torch.randn(2, 5, 8)
    out, tape = record(model, x)
    assert [(d.name, d.kind, d.p) for d in tape] == [
        ("self_attn#0", "attention-prob dropout", 0.3),
        ("dropout1#0", "dropout", 0.3),
        ("dropout#0", "dropout", 0.3),
        ("dropout2#0", "dropout", 0.3),
    ]
    assert torch.equal(replay(model, x, tape), out)
    torch.manual_seed(0)
    torch.testing.assert_close(model(x), out)


def test_encoder_layer_on_its_fast_path_draws_nothing() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        out, tape = record(model, x)
        plain = model(x)
    assert tape.active == ()
    torch.testing.assert_close(out, plain, rtol=1e-4, atol=1e-5)


def ones(p: float) -> Tape:
    """A mask that keeps everything: attention becomes deterministic but scaled."""
    keep = torch.ones(())
    return Tape((Draw("Module", 0, "attention-prob dropout", keep, p),))


SHAPES = {
    "plain": {},
    "bool mask": {"attn_mask": torch.rand(4, 6) > 0.4},
    "float mask": {"attn_mask": torch.randn(2, 1, 4, 6)},
    "row without key": {"attn_mask": torch.tensor([[False] * 6] + [[True] * 6] * 3)},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "grouped": {"enable_gqa": True},
    "negative scale": {"scale": -0.3},
}


@pytest.mark.parametrize("name", SHAPES)
def test_explicit_attention_is_torchs_own(name: str) -> None:
    torch.manual_seed(0)
    heads = 2 if name == "grouped" else 4
    q = torch.randn(2, 4, 4, 8, requires_grad=True)
    k, v = torch.randn(2, 2, heads, 6, 8, requires_grad=True)
    with sdpa_kernel(SDPBackend.MATH):
        wanted = F.scaled_dot_product_attention(q, k, v, **SHAPES[name])  # type: ignore[arg-type]
    with Recorder(nn.Module(), ones(0.5)):
        # Every value kept, and divided by the keep rate of one half.
        found = F.scaled_dot_product_attention(
            q, k, v, dropout_p=0.5, **SHAPES[name]  # type: ignore[arg-type]
        )  # fmt: skip
    torch.testing.assert_close(found / 2, wanted)
    weight = torch.randn_like(wanted)
    (back,) = torch.autograd.grad((found * weight).sum() / 2, q)
    (plain,) = torch.autograd.grad((wanted * weight).sum(), q)
    torch.testing.assert_close(back, plain)


def test_math_attention_draws_its_mask_where_the_tape_does() -> None:
    q = torch.randn(1, 2, 4, 8)
    with sdpa_kernel(SDPBackend.MATH):
        torch.manual_seed(0)
        wanted = F.scaled_dot_product_attention(q, q, q, dropout_p=0.4)
        torch.manual_seed(0)
        with Recorder(nn.Module()):
            found = F.scaled_dot_product_attention(q, q, q, dropout_p=0.4)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("inplace", [True, False])
def test_hardsigmoid_has_a_second_derivative_on_the_tape(inplace: bool) -> None:
    x = torch.linspace(-5, 5, 41, requires_grad=True)
    with Recorder(nn.Module()):
        found = F.hardsigmoid(x * 1, inplace=inplace)
    wanted = F.hardsigmoid(x)
    torch.testing.assert_close(found, wanted)
    weight = torch.randn(41, requires_grad=True)
    (first,) = torch.autograd.grad((found * weight).sum(), x, create_graph=True)
    (plain,) = torch.autograd.grad((wanted * weight.detach()).sum(), x)
    # The two corners are a matter of definition.
    inside = (x.detach().abs() - 3).abs() > 1e-3
    torch.testing.assert_close(first[inside], plain[inside])
    (second,) = torch.autograd.grad(first[inside].sum(), weight)
    slope = (x.detach().abs() < 3).float() / 6 * inside
    torch.testing.assert_close(second, slope)


@pytest.mark.parametrize("cls", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("layers", [2, 3])
def test_dropout_between_recurrent_layers(cls: type[nn.LSTM], layers: int) -> None:
    model = cls(4, 5, num_layers=layers, dropout=0.5, batch_first=True).train()
    x = torch.randn(2, 3, 4)
    torch.manual_seed(0)
    recorder = Recorder(model)
    with recorder:
        out, _ = model(x)
    draws = recorder.tape.draws
    assert len(draws) == layers - 1
    assert all(d.hidden and d.p == 0.5 and d.replayable for d in draws)
    assert "inter-layer dropout" in draws[0].kind
    torch.manual_seed(7)
    with Recorder(model, recorder.tape):
        again, _ = model(x)
    assert torch.equal(again, out)
    torch.manual_seed(0)
    assert torch.equal(model(x)[0], out)
    with Recorder(model, off=True):
        bare, _ = model(x)
    model.eval()
    torch.testing.assert_close(bare, model(x)[0])


@pytest.mark.filterwarnings("ignore:dropout option adds dropout:UserWarning")
def test_dropout_of_a_one_layer_lstm_has_no_effect() -> None:
    model = nn.LSTM(4, 5, num_layers=1, dropout=0.5).train()
    recorder, x = Recorder(model), torch.randn(3, 2, 4)
    with recorder:
        model(x)
    assert len(recorder.tape) == 0


def test_every_random_wrapper_of_torch_still_opens() -> None:
    """The body trick needs plain functions that ask ``has_torch_function`` first."""
    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout",
                 "feature_alpha_dropout", "multi_head_attention_forward", "rrelu",
                 "gumbel_softmax"):  # fmt: skip
        function = getattr(F, name)
        assert wrappers.body_of(function) is not None, name
        assert any(
            n.startswith("has_torch_function") for n in function.__code__.co_names
        ), name


def test_random_operators_carry_the_tag_that_the_census_reads() -> None:
    aten = torch.ops.aten
    for op in (aten.bernoulli_.float, aten.native_dropout.default, aten.rand.default,
               aten.randn_like.default, aten.normal_.default, aten.multinomial.default,
               aten.rrelu_with_noise.default, aten._fused_dropout.default,
               aten._scaled_dot_product_flash_attention.default,
               aten._standard_gamma.default):  # fmt: skip
        assert torch.Tag.nondeterministic_seeded in op.tags, op
