"""The gradient of a client's step, for models as people write them."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from privaudit import Auditor, Client
from privaudit._pixels import Normalisation
from privaudit.errors import UnsupportedModelError
from privaudit.exposure import ClientStep, GradientExposure, relative_error
from privaudit.types import Batch, Mode

X, Y = torch.rand(2, 3, 2, 2), torch.tensor([0, 2])


def exposure(mode: Mode = "train", **settings: Any) -> GradientExposure:
    return GradientExposure(Normalisation(), mode=mode, **settings)


def plain_gradient(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    loss = F.cross_entropy(model(x), y)
    return [*torch.autograd.grad(loss, [*model.parameters()])]


def observe(
    model: nn.Module, x: Tensor = X, y: Tensor = Y, **settings: Any
) -> ClientStep:
    return exposure(**settings).observe(model, Batch(x, y), seed=0)


def gradients(step: ClientStep) -> list[Tensor]:
    return [*step.observation.gradients.values()]


def second_derivative(
    model: nn.Module, step: ClientStep, *, mode: Mode = "train", x: Tensor = X,
    y: Tensor = Y,
) -> Tensor:  # fmt: skip
    """By the images, of the squared gradient."""
    guess = Batch(x.clone().requires_grad_(), y)
    found = exposure(mode).gradient(model, guess, tape=step.tape, create_graph=True)
    total = torch.stack([g.square().sum() for g in found.values()]).sum()
    return torch.autograd.grad(total, guess.images)[0]


# ---- case 1: fused attention


class Attn(nn.Module):
    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.l, self.h, self.p = nn.Linear(8, 24), nn.Linear(8, 3), p

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.l(x).chunk(3, -1)
        )
        p = self.p if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
        return self.h(out.transpose(1, 2).flatten(2).mean(1))  # type: ignore[no-any-return]


TOKENS = torch.randn(2, 1, 5, 8)


class Tokens(nn.Module):
    """Case 1's model on (B, 1, 5, 8), which exposures take for images."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.inner = Attn(p)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x[:, 0])  # type: ignore[no-any-return]


@pytest.mark.parametrize("p", [0.0, 0.5])
@pytest.mark.parametrize("mode", ["train", "as_is"])
def test_fused_attention(p: float, mode: Mode) -> None:
    model = Tokens(p).train(mode == "train")
    step = observe(model, TOKENS, mode=mode)
    if p == 0.0 or mode == "as_is":
        wanted = plain_gradient(model, TOKENS, Y)
    else:
        # Fused and math kernels draw alike on a CPU.
        torch.manual_seed(0)
        wanted = plain_gradient(model, TOKENS, Y)
    torch.testing.assert_close(gradients(step), wanted, rtol=1e-4, atol=1e-6)
    back = second_derivative(model, step, mode=mode, x=TOKENS)
    assert bool(back.isfinite().all())
    assert float(back.abs().max()) > 0


def test_second_derivative_of_attention_is_right() -> None:
    model = Tokens(0.5).double()
    x = TOKENS.double()
    step = observe(model, x)
    back = second_derivative(model, step, x=x)
    direction, eps = torch.randn_like(x), 1e-5

    def value(at: Tensor) -> float:
        found = exposure().gradient(model, Batch(at, Y), tape=step.tape)
        return sum(float(g.square().sum()) for g in found.values())

    slope = (value(x + eps * direction) - value(x - eps * direction)) / (2 * eps)
    assert float((back * direction).sum()) == pytest.approx(slope, rel=1e-4)


# ---- case 2: what goes in, what comes out


class Keyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l, self.aux = nn.Linear(12, 4), nn.Linear(12, 4)

    def forward(self, *, pixel_values: Tensor, labels: Tensor | None = None) -> Any:
        z = self.l(pixel_values.flatten(1))
        if self.training:
            return z, self.aux(pixel_values.flatten(1))
        return {"loss": None, "logits": z}


def test_two_heads_are_never_narrowed_to_one_in_silence() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        Auditor(Keyword()).inventory({"pixel_values": X, "labels": Y})
    text = str(caught.value)
    assert "[0]: (2, 4), [1]: (2, 4)" in text
    assert "loss=" in text


def test_the_users_own_loss_on_two_heads() -> None:
    def loss(output: Any, labels: Tensor) -> Tensor:
        return F.cross_entropy(output[0], labels) + F.cross_entropy(output[1], labels)

    model = Keyword()
    found = Auditor(model, loss=loss).inventory({"pixel_values": X, "labels": Y})
    assert found.shared == ["l.weight", "l.bias", "aux.weight", "aux.bias"]


def test_a_dict_with_logits_by_keyword_only() -> None:
    model = Keyword().eval()
    auditor = Auditor(model, client=Client(mode="as_is"))
    found = auditor.inventory({"pixel_values": X, "labels": Y})
    assert found.shared == ["l.weight", "l.bias"]
    plain = auditor.inventory((X, Y))
    assert plain.shared == found.shared


Two = namedtuple("Two", ["logits", "aux_logits"])
One = namedtuple("One", ["logits", "hidden"])


class Named(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind, self.l = kind, nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Any:
        x = self.l(x.flatten(1))
        return self.kind(x, x * 2)


def test_auxiliary_logits_are_refused_and_listed() -> None:
    with pytest.raises(UnsupportedModelError, match=r"aux_logits: \(2, 4\).*loss="):
        observe(Named(Two))
    with pytest.raises(UnsupportedModelError, match=r"\[1\]: \(2, 4\)"):
        observe(Named(lambda a, b: [a, b]))
    assert len(gradients(observe(Named(One)))) == 2
    with pytest.raises(UnsupportedModelError, match="nothing"):
        observe(Named(lambda *_: {"loss": None}))


def test_a_model_output_of_transformers() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")

    def build(a: Tensor, b: Tensor) -> Any:
        return outputs.ImageClassifierOutput(logits=a, hidden_states=(b,))

    model = Named(build)
    logits = model(X).logits
    step = observe(model)
    assert step.logits is not None
    torch.testing.assert_close(step.logits, logits)


# ---- case 3: batch normalisation of one value


ONE_VALUE = [
    (nn.BatchNorm1d(8), ["batch of at least 2", "as_is"]),
    (nn.InstanceNorm1d(8), ["larger images"]),
    (nn.GroupNorm(8, 8), ["batch of at least 2", "larger ones"]),
]


@pytest.mark.parametrize(("layer", "ways"), ONE_VALUE)
def test_one_value_per_channel_is_named_with_ways_out(
    layer: nn.Module, ways: list[str]
) -> None:
    shape = (
        nn.Flatten() if isinstance(layer, nn.BatchNorm1d) else nn.Unflatten(1, (8, 1))
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), shape, layer, nn.Flatten(),
                          nn.Linear(8, 3)).train()  # fmt: skip
    with pytest.raises(UnsupportedModelError) as caught:
        Auditor(model).audit((X[:1], Y[:1]))
    text = str(caught.value)
    assert text.startswith(f"3: {type(layer).__name__}")
    assert "more than one value per channel" in text
    assert all(way in text for way in ways)


def test_one_image_with_several_values_per_channel_runs() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(),
                          nn.Linear(64, 3))  # fmt: skip
    x = torch.rand(1, 3, 4, 4)
    wanted = plain_gradient(model, x, Y[:1])
    assert relative_error_of(observe(model, x, Y[:1]), wanted) < 1e-6


def relative_error_of(step: ClientStep, wanted: list[Tensor]) -> float:
    names = [*step.observation.gradients]
    return relative_error(
        step.observation.gradients, dict(zip(names, wanted, strict=True))
    )


# ---- case 11: frozen parameters


def test_partly_frozen() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    model[1].weight.requires_grad_(False)
    model[3].weight.requires_grad_(False)
    found = Auditor(model).inventory((torch.rand(2, 1, 2, 2), Y))
    assert (found.trainable, found.parameters) == (7, 35)
    assert found.shared == ["1.bias", "3.bias"]
    (finding,) = [f for f in found.findings if f.code == "partly-frozen"]
    assert "7 of 35" in finding.text
    assert [p.requires_grad for p in model.parameters()] == [False, True, False, True]


def test_fully_frozen() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).requires_grad_(False)
    with pytest.raises(
        UnsupportedModelError, match=r"(?i)no trainable parameter; noth"
    ):
        Auditor(model).audit((X, Y))


def test_unused_parameters_are_left_out_by_name() -> None:
    class U(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pool, self.a = nn.Linear(12, 12), nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x.flatten(1))  # type: ignore[no-any-return]

    found = Auditor(U()).inventory((X, Y))
    assert found.shared == ["a.weight", "a.bias"]
    (finding,) = [f for f in found.findings if f.code == "unused-parameters"]
    assert finding.where == "pool.bias, pool.weight"


# ---- case 32: compiled models


def compiled(value: Any) -> Any:
    return torch.compile(value, backend="aot_eager")


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Dropout(0.5),
                         nn.Linear(4, 3))  # fmt: skip


def compiled_method(model: nn.Module) -> nn.Module:
    model.compile(backend="aot_eager")
    return model


def compiled_part(model: nn.Sequential) -> nn.Module:
    model[1], model[3] = compiled(model[1]), compiled(model[3])
    return model


class WithFunction(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.twice = compiled(lambda x: x * 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.twice(self.body(x)) / 2  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "build", [compiled, compiled_method, compiled_part, WithFunction]
)
def test_compiled_code_is_audited_eagerly(build: Any) -> None:
    wanted = observe(mlp())
    model = build(mlp())
    auditor = Auditor(model, attacks=["closed_form"])
    found = auditor.inventory((X, Y))
    codes = [f.code for f in found.findings]
    assert "compiled" in codes
    if build is not compiled:
        assert "compiled parts run eagerly" in found.changes
    start = "body." if build is WithFunction else ""
    assert found.shared == [
        f"{start}{n}" for n in ("1.weight", "1.bias", "4.weight", "4.bias")
    ]
    assert [c.name for c in found.stochastic] == [f"{start}3#0"]
    inner = model._orig_mod if build is compiled else model
    step = observe(inner)
    torch.testing.assert_close(gradients(step), gradients(wanted))
    assert second_derivative(inner, step).isfinite().all()


# ---- case 33: data-parallel and sharded wrappers


@pytest.mark.parametrize("attribute", ["", "module"])
def test_data_parallel_is_taken_off(attribute: str) -> None:
    model = nn.DataParallel(mlp())
    given = getattr(model, attribute) if attribute else model
    found = Auditor(given).inventory((X, Y))
    assert found.shared == ["1.weight", "1.bias", "4.weight", "4.bias"]
    notes = [f for f in found.findings if f.code == "data-parallel"]
    assert len(notes) == (0 if attribute else 1)
    if notes:
        assert "ranks would reduce the leak" in notes[0].text


def test_data_parallel_over_a_compiled_model() -> None:
    found = Auditor(nn.DataParallel(compiled(mlp()))).inventory((X, Y))
    assert found.shared == ["1.weight", "1.bias", "4.weight", "4.bias"]
    assert {"data-parallel", "compiled"} <= {f.code for f in found.findings}


def test_shards_are_refused() -> None:
    class FullyShardedDataParallel(nn.Sequential):
        pass

    outer = nn.Sequential(FullyShardedDataParallel(nn.Linear(4, 4)))
    with pytest.raises(UnsupportedModelError, match=r"^0: .*shards.*[Gg]ather"):
        Auditor(outer)
    with pytest.raises(UnsupportedModelError, match="shards"):
        Auditor(FullyShardedDataParallel(nn.Linear(4, 4)))


# ---- kinds without an input


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.l, self.d, self.h = nn.Linear(12, 8), nn.Dropout(0.5), nn.Linear(8, 3)
        self.reentrant = reentrant

    def body(self, x: Tensor) -> Tensor:
        return self.d(torch.tanh(self.l(x)))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if self.reentrant is None:
            return self.h(self.body(x))  # type: ignore[no-any-return]
        return self.h(checkpoint(self.body, x, use_reentrant=self.reentrant))  # type: ignore[no-any-return]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_keep_their_activations_inside_the_audit(reentrant: bool) -> None:
    wanted, model = observe(Checkpointed(None)), Checkpointed(reentrant)
    step = observe(model)
    assert [d.name for d in step.tape] == ["d#0"]
    torch.testing.assert_close(gradients(step), gradients(wanted))
    again = exposure().gradient(model, Batch(X, Y), tape=step.tape)
    assert relative_error(again, step.observation.gradients) == 0.0
    assert second_derivative(model, step).isfinite().all()


def test_a_gradient_that_only_backward_sees_is_an_error() -> None:
    """A reversible layer, a home-made checkpoint: its own backward inside."""

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, layer: nn.Module) -> Tensor:
            ctx.save_for_backward(x)
            ctx.layer = layer
            return layer(x)  # type: ignore[no-any-return]

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            x = x.detach().requires_grad_()
            with torch.enable_grad():
                ctx.layer(x).backward(grad)
            return x.grad, None

    class Reversible(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.l, self.h = (nn.Linear(12, 12) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.h(Own.apply(self.first(x.flatten(1)), self.l))  # type: ignore[no-any-return]

    with pytest.raises(UnsupportedModelError, match=r"^l\.\w+: .*backward"):
        observe(Reversible())


def test_tied_weights_are_one_gradient_the_sum_of_both_uses() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(12, 12), nn.Linear(12, 12)
            self.b.weight = self.a.weight
            self.again = self.a

        def forward(self, x: Tensor) -> Tensor:
            return self.again(self.b(self.a(x.flatten(1)).tanh()).tanh())  # type: ignore[no-any-return]

    model = Tied()
    step = observe(model)
    assert [*step.observation.gradients] == ["a.weight", "a.bias", "b.bias"]
    F.cross_entropy(model(X), Y).backward()  # type: ignore[no-untyped-call]
    wanted = [p.grad for p in model.parameters()]
    torch.testing.assert_close(gradients(step), wanted)


def test_spectral_norm_is_frozen_at_the_clients_state() -> None:
    layer = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(12, 16))
    model = nn.Sequential(nn.Flatten(), layer, nn.Linear(16, 3)).train()
    first, second = observe(model), observe(model)
    torch.testing.assert_close(gradients(first), gradients(second), rtol=0, atol=0)
    again = exposure().gradient(model, Batch(X, Y), tape=first.tape)
    assert relative_error(again, first.observation.gradients) == 0.0
    assert second_derivative(model, first).isfinite().all()


def test_users_hooks_take_part_in_the_step() -> None:
    model = mlp()
    model[1].register_forward_hook(lambda *io: io[2] * 3)
    wanted = plain_gradient(model.eval(), X, Y)
    step = observe(model, mode="as_is")
    torch.testing.assert_close(gradients(step), wanted)


def test_a_random_loss_is_recorded_too() -> None:
    def loss(output: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(F.dropout(output, 0.5), labels)

    model = mlp()
    step = observe(model, loss=loss)
    assert [d.name for d in step.tape] == ["3#0", "Sequential#0"]
    again = exposure(loss=loss).gradient(model, Batch(X, Y), tape=step.tape)
    assert relative_error(again, step.observation.gradients) == 0.0


def test_the_step_seeds_nothing_but_itself() -> None:
    model = mlp()
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = observe(model)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)
    second = observe(model)
    torch.testing.assert_close(gradients(first), gradients(second), rtol=0, atol=0)


def test_the_compiler_is_never_asked() -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("compiled inside the audit")

    model = WithFunction(mlp())

    def twice(x: Tensor) -> Tensor:
        return x * 2

    model.twice = torch.compile(twice, backend=refuse)
    assert len(gradients(observe(model))) == 4


def test_inference_tensors_as_buffers() -> None:
    class RC(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(12, 3)
            with torch.inference_mode():
                self.register_buffer("c", torch.rand(12))
            self.c: Tensor

        def forward(self, x: Tensor) -> Tensor:
            return self.l(x.flatten(1) * self.c)  # type: ignore[no-any-return]

    step = observe(RC())
    assert len(gradients(step)) == 2


@pytest.mark.parametrize("part", ["whole", "half"])
def test_a_model_without_values_or_on_two_devices_is_refused(part: str) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.Linear(4, 3))
    (model if part == "whole" else model[1]).to("meta")
    with pytest.raises(UnsupportedModelError, match=r"on one device.*meta: (52|67)"):
        Auditor(model)
