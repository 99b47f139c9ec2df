"""Everything random is recorded by call, and put back exactly."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from privaudit.errors import UnsupportedModelError
from privaudit.tape import Recorder, Tape


def record(model: nn.Module, x: Tensor, seed: int = 0) -> tuple[Tensor, Tape]:
    torch.manual_seed(seed)
    recorder = Recorder(model)
    with recorder:
        out = model(x)
    return out, recorder.tape


def replay(model: nn.Module, x: Tensor, tape: Tape) -> Tensor:
    with Recorder(model, tape):
        return model(x)  # type: ignore[no-any-return]


def off(model: nn.Module, x: Tensor) -> Tensor:
    with Recorder(model, off=True):
        return model(x)  # type: ignore[no-any-return]


class Calls(nn.Module):
    """A model that is one function of its input."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


DROPOUTS: list[tuple[type[nn.Module], int]] = [
    (nn.Dropout, 2),
    (nn.Dropout1d, 3),
    (nn.Dropout2d, 4),
    (nn.Dropout3d, 5),
    (nn.AlphaDropout, 2),
    (nn.FeatureAlphaDropout, 4),
]


@settings(max_examples=8, deadline=None)
@given(
    kind=st.sampled_from(DROPOUTS),
    p=st.floats(0.05, 0.95),
    seed=st.integers(0, 99),
    sizes=st.lists(st.integers(1, 4), min_size=5, max_size=5),
)
def test_a_seed_gives_the_same_masks_with_and_without_the_tape(
    kind: tuple[type[nn.Module], int], p: float, seed: int, sizes: list[int]
) -> None:
    cls, dims = kind
    model, x = cls(p).train(), torch.randn(sizes[:dims])
    out, tape = record(model, x, seed)
    torch.manual_seed(seed)
    torch.testing.assert_close(out, model(x))
    assert torch.equal(replay(model, x, tape), out)
    assert [d.p for d in tape] == [p]


@pytest.mark.parametrize("contiguous", [True, False])
def test_masks_follow_the_strides_that_torch_draws_into(contiguous: bool) -> None:
    x = torch.randn(3, 4, 5, 6)
    x = x if contiguous else x.to(memory_format=torch.channels_last).transpose(1, 3)
    model = nn.Dropout(0.5)
    out, _ = record(model, x)
    torch.manual_seed(0)
    assert torch.equal(out, model(x))


def test_feature_dropout_masks_whole_channels() -> None:
    model = nn.Sequential(nn.Conv2d(2, 8, 1), nn.Dropout2d(0.5)).train()
    _, tape = record(model, torch.randn(3, 2, 4, 4))
    (draw,) = tape
    assert (draw.name, draw.kind) == ("1#0", "dropout2d")
    value = draw.value
    assert value is not None
    assert value.shape == (3, 8, 1, 1)


@pytest.mark.parametrize("cls", [nn.Dropout, nn.Dropout2d, nn.AlphaDropout])
def test_p_0_and_p_1_draw_nothing(cls: type[nn.Module]) -> None:
    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    for p in (0.0, 1.0):
        model = cls(p).train()
        torch.manual_seed(3)
        before = torch.get_rng_state()
        recorder = Recorder(model)
        with recorder:
            out = model(x)
        assert torch.equal(before, torch.get_rng_state())
        (draw,) = recorder.tape
        assert draw.value is None
        assert draw.active == (p == 1.0)
        torch.testing.assert_close(out, model(x))
        (back,) = torch.autograd.grad(out.sum(), x)
        assert bool(back.isfinite().all())


def test_masks_are_drawn_not_inferred_from_zeros() -> None:
    """Case 18: one dropout used twice, behind ReLUs."""

    class T(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l, self.d = nn.Linear(100, 100), nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.d(F.relu(self.l(self.d(F.relu(self.l(x))))))  # type: ignore[no-any-return]

    model, x = T().train(), torch.randn(100, 100)
    out, tape = record(model, x)
    assert [d.name for d in tape] == ["d#0", "d#1"]
    first, second = tape["d#0"].value, tape["d#1"].value
    assert first is not None
    assert second is not None
    assert not torch.equal(first, second)
    assert float(first.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(second.mean()) == pytest.approx(0.5, abs=0.02)
    assert torch.equal(replay(model, x, tape), out)
    alone = replay(model, x[3:4], tape.select(3, batch_size=100))
    torch.testing.assert_close(alone, out[3:4])


def test_replay_consumes_no_randomness() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.RReLU()).train()
    x = torch.randn(2, 4)
    _, tape = record(model, x)
    before = torch.get_rng_state()
    replay(model, x, tape)
    assert torch.equal(before, torch.get_rng_state())


NOISES: dict[str, Callable[[Tensor], Tensor]] = {
    "randn_like": lambda x: x + torch.randn_like(x),
    "randn": lambda x: x + torch.randn(x.shape),
    "own generator": lambda x: (
        x + torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    ),
    "rand": lambda x: x * (torch.rand(x.shape) > 0.3),
    "normal, size": lambda x: x + torch.normal(0.0, 1.0, x.shape),
    "normal, tensors": lambda x: x + torch.normal(torch.zeros_like(x), x.abs()),
    "normal_": lambda x: x + torch.empty_like(x).normal_(),
    "uniform_": lambda x: x + x.new_empty(x.shape).uniform_(2, 3),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
    "bernoulli_ tensor": lambda x: (
        x * torch.empty_like(x).bernoulli_(torch.full_like(x, 0.5))
    ),
    "randperm": lambda x: x[:, torch.randperm(x.shape[1])],
    "randint": lambda x: x + torch.randint(0, 99, x.shape),
    "multinomial": lambda x: x * torch.multinomial(x.softmax(-1), 2).sum(),
    "poisson": lambda x: x + torch.poisson(x.abs() * 9),
    "binomial": lambda x: (
        x + torch.binomial(torch.full_like(x, 9), torch.full_like(x, 0.5))
    ),
    "gamma": lambda x: x + torch.distributions.Gamma(2.0, 1.0).sample(x.shape),
    "dirichlet": lambda x: x + torch.distributions.Dirichlet(torch.ones(9)).rsample(),
    "normal rsample": lambda x: x + torch.distributions.Normal(0, 1).rsample(x.shape),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x),
    "trunc_normal": lambda x: x + nn.init.trunc_normal_(torch.empty_like(x)),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "layer drop": lambda x: x if bool(torch.rand([]) < 0.5) else -x,
    "fractional max pool": lambda x: F.fractional_max_pool2d(
        x.view(2, 1, 3, 3), 2, output_size=2
    ),
    "attention": lambda x: F.scaled_dot_product_attention(
        x.view(2, 1, 3, 3), x.view(2, 1, 3, 3), x.view(2, 1, 3, 3), dropout_p=0.5
    ),
}


@pytest.mark.parametrize("name", NOISES)
def test_every_torch_draw_is_listed_and_replayed(name: str) -> None:
    model, x = Calls(NOISES[name]), torch.randn(2, 9)
    out, tape = record(model, x)
    assert len(tape.active) == 1
    assert tape.draws[0].path == "Calls"
    assert tape.draws[0].replayable
    torch.manual_seed(99)
    assert torch.equal(replay(model, x, tape), out)


@pytest.mark.parametrize("name", sorted(set(NOISES) - {"rrelu", "attention"}))
def test_the_tape_does_not_change_what_is_drawn(name: str) -> None:
    # RReLU draws for negative values only, attention in another order: both are
    # recorded as the tape draws them.
    model, x = Calls(NOISES[name]), torch.randn(2, 9)
    out, _ = record(model, x)
    torch.manual_seed(0)
    assert torch.equal(model(x), out)


OFF: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "alpha": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.7)) / 0.7,
    "bernoulli p": lambda x: x * torch.bernoulli(torch.empty_like(x), 0.7) / 0.7,
    "bernoulli_ tensor": lambda x: (
        x * torch.empty_like(x).bernoulli_(torch.full_like(x, 0.7)) / 0.7
    ),
    "drop path": lambda x: x * x.new_empty(len(x), 1).bernoulli_(0.7).div_(0.7),
    "rand > p": lambda x: x * (torch.rand_like(x) > 0.3),
    "rand < keep": lambda x: x * (torch.rand(x.shape) < 0.7),
    "floor": lambda x: x * (0.7 + torch.rand(len(x), 1)).floor(),
    "skip": lambda x: x * 0 if bool(torch.rand([]) < 0.3) else x,
    "keep": lambda x: x if bool(torch.rand([]) < 0.7) else x * 0,
    "noise": lambda x: x + torch.randn_like(x) + torch.empty_like(x).normal_(),
    "centred": lambda x: x + torch.empty_like(x).uniform_(-2, 2),
}


@pytest.mark.parametrize("name", OFF)
def test_switched_off_nothing_is_dropped_and_nothing_added(name: str) -> None:
    x = torch.randn(4, 6)
    out = off(Calls(OFF[name]), x)
    torch.testing.assert_close(out, x)


def test_a_replay_that_takes_another_way_is_refused() -> None:
    model, x = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5)), torch.randn(2, 3)
    _, tape = record(model, x)
    short = Tape(tape.draws[:1])
    with pytest.raises(UnsupportedModelError, match=r"1: expected no further draw"):
        replay(model, x, short)
    with pytest.raises(UnsupportedModelError, match="cannot be replayed"):
        replay(nn.RReLU().train(), x, tape)


def test_owners_survive_an_exception_inside_a_module() -> None:
    class Fragile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad, self.good = Calls(self._raise), nn.Dropout(0.5)

        def _raise(self, x: Tensor) -> Tensor:
            raise ValueError("no")

        def forward(self, x: Tensor) -> Tensor:
            try:
                x = self.bad(x)
            except ValueError:
                x = F.dropout(x)
            return self.good(x)  # type: ignore[no-any-return]

    _, tape = record(Fragile(), torch.randn(2, 3))
    assert [d.name for d in tape] == ["Fragile#0", "good#0"]


def test_a_submodule_called_without_its_call_is_still_recorded() -> None:
    class Bypass(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.d = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.d.forward(x)

    _, tape = record(Bypass().train(), torch.randn(2, 3))
    assert [(d.path, d.p) for d in tape] == [("Bypass", 0.5)]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.d, self.b = nn.Linear(6, 32), nn.Dropout(0.5), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.d(F.relu(self.a(x))))  # type: ignore[no-any-return]


def test_masks_are_put_back_under_vmap_of_grad() -> None:
    """Case 12: eight restarts, one recorded mask, no randomness consumed."""
    model, x, y = Mlp().train(), torch.randn(2, 6), torch.tensor([0, 2])
    out, tape = record(model, x)
    truth = torch.autograd.grad(F.cross_entropy(out, y), [*model.parameters()])
    weights = {n: p.detach() for n, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], guess: Tensor) -> Tensor:
        with Recorder(model, tape):
            logits = torch.func.functional_call(model, parameters, (guess,))
        return F.cross_entropy(logits, y)

    def distance(guess: Tensor) -> Tensor:
        found = torch.func.grad(loss)(weights, guess)
        pairs = zip(found.values(), truth, strict=True)
        return sum(((a - b).square().sum() for a, b in pairs), torch.zeros(()))

    starts = torch.stack([x] + [torch.randn_like(x) for _ in range(7)])
    before = torch.get_rng_state()
    back, values = torch.func.vmap(torch.func.grad_and_value(distance))(starts)
    assert torch.equal(before, torch.get_rng_state())
    assert float(values[0]) < 1e-10
    assert float(back[0].abs().max()) < 1e-5
    alone = torch.func.grad(distance)(starts[3])
    torch.testing.assert_close(back[3], alone)


def test_attention_masks_are_put_back_under_vmap() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True).train()
    x = torch.randn(1, 5, 8)
    out, tape = record(model, x)

    def run(guess: Tensor) -> Tensor:
        return replay(model, guess, tape)

    many = torch.func.vmap(run)(torch.stack([x, x + 1]))
    torch.testing.assert_close(many[0], out, rtol=1e-5, atol=1e-6)
