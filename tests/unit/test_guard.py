"""Whatever happens inside an audit, the user's model comes back bit for bit."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from privaudit import Auditor, Budget, Client
from privaudit._guard import kept_buffers, pristine
from privaudit.attacks import ClosedForm

QUICK: dict[str, Any] = {
    "attacks": ["closed_form"],
    "budget": Budget(seconds=20, iterations=2, restarts=1),
}
IMAGES, LABELS = torch.rand(4, 3, 8, 8), torch.arange(4)
_HOOKS = [n for n in vars(nn.Module()) if n.endswith("_hooks")]
_GLOBAL_HOOKS = [
    h for h in vars(nn.modules.module).values() if isinstance(h, OrderedDict)
]


def bits(value: Any) -> Any:
    """Something comparable that differs whenever a single bit does."""
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous().view(-1).view(torch.uint8)
        return (id(value), tuple(value.shape), value.dtype, bytes(data.numpy()))
    if isinstance(value, np.ndarray):
        return (id(value), value.tobytes())
    if isinstance(value, torch.Generator):
        return (id(value), bytes(value.get_state().numpy()))
    if isinstance(value, (list, tuple, deque)):
        return (id(value), [bits(v) for v in value])
    if isinstance(value, dict):
        return (id(value), [(k, bits(v)) for k, v in value.items()])
    if isinstance(value, SimpleNamespace):
        return (id(value), bits(vars(value)))
    return value if isinstance(value, (bool, int, float, str)) else id(value)


def world() -> list[Any]:
    """Random states and backend flags."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    return [
        bytes(torch.get_rng_state().numpy()),
        random.getstate(),
        repr(np.random.get_state(legacy=False)),
        (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32),
        matmul.allow_tf32,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(),
        torch.backends.mha.get_fastpath_enabled(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch._C._get_flash_sdp_enabled(),
        torch._C._get_math_sdp_enabled(),
        torch._C._get_mem_efficient_sdp_enabled(),
        [len(h) for h in _GLOBAL_HOOKS],
        torch.utils.checkpoint._checkpoint_hook,
        torch.utils.checkpoint.CheckpointFunction,
    ]


def snapshot(model: nn.Module) -> list[Any]:
    """All of a model that anyone could look at, and the world around it."""
    modules = [
        (name, id(m), type(m), m.training, bits(vars(m)),
         [[(k, id(h)) for k, h in getattr(m, kind).items()] for kind in _HOOKS])
        for name, m in model.named_modules()
    ]  # fmt: skip
    parameters = [
        (name, type(p), p.requires_grad, bits(p.grad))
        for name, p in model.named_parameters(remove_duplicate=False)
    ]
    return [modules, parameters, bits(model.state_dict()["4.weight"])
            if "4.weight" in model.state_dict() else None, world()]  # fmt: skip


def case_4() -> nn.Sequential:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.Dropout(0.3),
        nn.Flatten(),
        spectral_norm(nn.Linear(144, 64)),
        nn.Linear(64, 5),
    ).train()
    model[1].eval()
    model[0].bias.requires_grad_(False)
    model[5].weight.grad = torch.full((5, 64), 0.25)
    return model


class Busy(nn.Module):
    """Changes everything that a forward pass can reach."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(192, 4)
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("holes", torch.tensor([float("nan"), -0.0]))
        self.steps: Tensor
        self.holes: Tensor
        self.register_buffer("nothing", None)
        self.count, self.log, self.table = 0, [torch.zeros(2)], {"a": {"b": [1]}}
        self.queue, self.array = deque([1, 2], maxlen=3), np.zeros(3)
        self.scale = torch.ones(4)
        self.state = SimpleNamespace(seen=0, last=torch.zeros(3), rows=[])
        self.generator = torch.Generator().manual_seed(5)
        self.twister = random.Random(5)
        self.numbers = np.random.default_rng(5)
        self.blocks = [nn.BatchNorm1d(4)]
        self.cache: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = self.l(x.flatten(1))
        self.steps += 1
        self.holes = self.holes + 1
        self.count += 1
        self.log.append(x.detach())
        self.log[0] += 1
        self.table["a"]["b"].append(2)
        self.queue.append(3)
        self.array += 1
        with torch.no_grad():
            self.scale.mul_(0.9)
            self.l.bias.add_(0.1)
        self.state.seen += 1
        self.state.last += 1
        self.state.rows.append(1)
        self.cache = x
        self.extra = 1
        noise = torch.randn(x.shape, generator=self.generator)
        shift = self.twister.random() + self.numbers.random() + np.random.rand()
        return self.blocks[0](x + noise) * self.scale + shift + random.random()  # type: ignore[no-any-return]


def hooked() -> nn.Sequential:
    model = case_4()
    model[2].register_forward_hook(lambda *_: None)
    model[2].register_forward_hook(lambda *io: io[2] * 1)
    model[2].register_forward_pre_hook(lambda *_: None)
    model[5].register_full_backward_hook(lambda *_: None)
    model[5].weight.register_hook(lambda g: g * 1)  # type: ignore[operator]
    return model


@pytest.mark.parametrize("build", [case_4, hooked, Busy])
def test_after_success(build: Callable[[], nn.Module]) -> None:
    model = build()
    images = IMAGES.clone()
    before = snapshot(model)
    auditor = Auditor(model, **QUICK)
    auditor.audit((images, LABELS))
    auditor.inventory(images)
    auditor.plan(images)
    assert snapshot(model) == before
    assert torch.equal(images, IMAGES)


@pytest.mark.parametrize("build", [case_4, Busy])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_after_an_attack_that_breaks(
    build: Callable[[], nn.Module],
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(_: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        with torch.no_grad():
            for tensor in target.model.state_dict().values():
                tensor.add_(1)
        target.model.requires_grad_(False).eval()
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark
        torch.use_deterministic_algorithms(True)
        torch.set_grad_enabled(False)
        raise error

    model = build()
    before = snapshot(model)
    monkeypatch.setattr(ClosedForm, "run", run)
    if error is KeyboardInterrupt:
        # Ctrl-C ends the attacks; what was done until then is judged and kept.
        result = Auditor(model, **QUICK).audit((IMAGES, LABELS))
        assert result.verdict.word == "inconclusive"
        assert "partial" in {c.code for c in result.verdict.causes}
    else:
        with pytest.raises(error):
            Auditor(model, **QUICK).audit((IMAGES, LABELS))
    assert snapshot(model) == before


def test_after_an_attack_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        target.model[0].weight.data.zero_()
        raise LookupError("no such thing")

    model = case_4()
    before = snapshot(model)
    monkeypatch.setattr(ClosedForm, "run", run)
    result = Auditor(model, **QUICK).audit((IMAGES, LABELS))
    assert result.verdict.word == "inconclusive"
    assert snapshot(model) == before


@pytest.mark.parametrize("build", [case_4, Busy])
@pytest.mark.parametrize("error", [RuntimeError, LookupError, KeyboardInterrupt])
def test_after_a_loss_that_raises(
    build: Callable[[], nn.Module], error: type[BaseException]
) -> None:
    def loss(output: Tensor, labels: Tensor) -> Tensor:
        raise error("no")

    model = build()
    before = snapshot(model)
    with pytest.raises((error, Exception)):
        Auditor(model, loss=loss, **QUICK).audit((IMAGES, LABELS))
    assert snapshot(model) == before


def test_ctrl_c_in_any_forward_pass() -> None:
    model, seen, stop_at = case_4(), [0], [0]

    def stop(*_: Any) -> None:
        seen[0] += 1
        if seen[0] == stop_at[0]:
            raise KeyboardInterrupt

    model[2].register_forward_hook(stop)
    before = snapshot(model)
    Auditor(model, **QUICK).audit((IMAGES, LABELS))
    passes = seen[0]
    assert passes > 3
    for stop_at[0] in {1, 2, passes // 2, passes}:
        seen[0], ended = 0, False
        try:
            result = Auditor(model, **QUICK).audit((IMAGES, LABELS))
            ended = "partial" in {c.code for c in result.verdict.causes}
        except KeyboardInterrupt:
            ended = True
        assert ended
        assert snapshot(model) == before


def test_a_second_ctrl_c_does_not_stop_the_restoring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, calls = case_4(), []
    copy = Tensor.copy_

    def impatient(self: Tensor, *args: Any) -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return copy(self, *args)

    def audit() -> None:
        with pristine(model), torch.no_grad():
            for p in model.parameters():
                p.add_(1)
            monkeypatch.setattr(Tensor, "copy_", impatient)
            raise KeyboardInterrupt

    before = snapshot(model)
    with pytest.raises(KeyboardInterrupt):
        audit()
    monkeypatch.undo()
    assert len(calls) > 2
    assert snapshot(model) == before


def test_the_client_may_hold_its_modes() -> None:
    model = case_4().eval()
    before = snapshot(model)
    found = Auditor(model, client=Client(mode="as_is"), **QUICK).inventory(IMAGES)
    assert [c.name for c in found.stochastic] == []
    assert snapshot(model) == before


def test_a_model_that_changes_its_input_changes_a_copy() -> None:
    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(192, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.l(x.sub_(0.5).mul_(2).flatten(1))  # type: ignore[no-any-return]

    images = IMAGES[:1].clone()
    result = Auditor(Shift(), **QUICK).audit(images)
    assert torch.equal(images, IMAGES[:1])
    assert result.attacks["closed_form"].state == "exact"
    found = result.attacks["closed_form"].reconstructions
    torch.testing.assert_close(found, images, atol=1e-3, rtol=0)


def test_buffers_stay_what_the_graph_was_built_on() -> None:
    """A second derivative, taken after the buffers are back, uses the right ones."""

    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.ones(1))
            self.mean: Tensor

        def forward(self, x: Tensor) -> Tensor:
            self.mean.mul_(3)
            return (x * self.mean) ** 2

    model, x = Average(), torch.tensor([2.0], requires_grad=True)
    kept = model.mean
    with kept_buffers(model):
        out = model(x)
    assert model.mean is kept
    assert float(kept) == 1.0
    (first,) = torch.autograd.grad(out, x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    assert (float(first.detach()), float(second)) == (36.0, 18.0)


def test_batch_norm_statistics_do_not_move_and_do_not_block() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(),
                          nn.Linear(144, 5))  # fmt: skip
    before = snapshot(model)
    result = Auditor(model, **QUICK).audit((IMAGES, LABELS))
    assert result.record.preflight.double_backward == "ok"
    assert result.record.preflight.loss_at_truth == pytest.approx(0, abs=1e-5)
    assert snapshot(model) == before


def test_tied_and_shared_parts_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(12, 12), nn.Linear(12, 12)
            self.b.weight = self.a.weight
            self.again = self.a
            self.head = nn.Linear(12, 3)
            one = torch.ones(1)
            self.register_buffer("one", one)
            self.register_buffer("same", one)
            self.one: Tensor
            self.same: Tensor

        def forward(self, x: Tensor) -> Tensor:
            x = self.b(self.a(x.flatten(1)).tanh())
            self.one.add_(1)
            return self.head(self.again(x) * self.same)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model, x, y = Tied(), torch.rand(2, 3, 2, 2), torch.tensor([0, 2])
    before = snapshot(model)
    result = Auditor(model, **QUICK).audit((x, y))
    assert snapshot(model) == before
    assert model.b.weight is model.a.weight
    assert model.again is model.a
    assert model.same is model.one
    assert result.record.inventory.shared == [
        "a.weight", "a.bias", "b.bias", "head.weight", "head.bias",
    ]  # fmt: skip
    assert result.record.preflight.loss_at_truth == pytest.approx(0, abs=1e-5)


def test_the_guard_leaves_untouched_tensors_alone() -> None:
    """A restored tensor gets a new version; one that nobody touched must not."""
    model = case_4()
    versions = [p._version for p in model.parameters()]
    graph = F.mse_loss(model[5](torch.rand(2, 64)), torch.zeros(2, 5))
    with pristine(model):
        model(IMAGES)
    assert [p._version for p in model.parameters()] == versions
    graph.backward()  # type: ignore[no-untyped-call]
