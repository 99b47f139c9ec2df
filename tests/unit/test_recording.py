"""record_step: what it captures, what it refuses, and that it leaves no trace."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)

from privaudit.errors import ConfigError
from privaudit.recording import RecordedStep, Update, record_step
from tests.unit.recording import backward, batch, conv, mlp, plain_gradient, sgd

IMAGES, LABELS = batch()


def same(update: Update, expected: dict[str, Tensor]) -> bool:
    return list(update.gradients) == list(expected) and all(
        torch.equal(update.gradients[n], g) for n, g in expected.items()
    )


def hooks(model: nn.Module) -> list[object]:
    found: list[object] = [
        list(_global_optimizer_pre_hooks),
        list(_global_optimizer_post_hooks),
    ]
    for module in model.modules():
        found += [list(module._forward_pre_hooks), list(module._forward_hooks)]
    for p in model.parameters():
        found.append(list(p._backward_hooks or ()))
        found.append(list(getattr(p, "_post_accumulate_grad_hooks", None) or ()))
    return found


def nothing(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    del model, optimizer


def step_inside(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()


def step_and_reset(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()


def step_and_fill_with_zeros(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def reset_only(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p.sub_(0.1 * p.grad)
                p.grad = None


AFTERWARDS = [nothing, step_inside, step_and_reset, step_and_fill_with_zeros]
AFTERWARDS += [reset_only, by_hand]


@pytest.mark.parametrize("after", AFTERWARDS)
def test_the_gradient_is_the_one_of_plain_training(
    after: Callable[[nn.Module, torch.optim.Optimizer], None],
) -> None:
    model = mlp()
    expected = plain_gradient(model, IMAGES, LABELS)
    torch.manual_seed(1)
    with record_step(model) as step:
        optimizer = sgd(model)
        optimizer.zero_grad()
        backward(model, IMAGES, LABELS)
        after(model, optimizer)
    assert same(step.update, expected)
    facts = step.update.facts
    assert facts.source == "recorded step"
    assert (facts.mode, facts.micro_batches) == ("train", 1)
    assert facts.image_shape == (3, 16, 16)
    assert list(facts.weights) == list(expected)
    assert step.masks == ()


def test_recording_changes_nothing_in_training() -> None:
    plain, recorded = mlp(), mlp()
    for model, record in ((plain, False), (recorded, True)):
        torch.manual_seed(1)
        if record:
            with record_step(model):
                backward(model, IMAGES, LABELS)
                sgd(model).step()
        else:
            backward(model, IMAGES, LABELS)
            sgd(model).step()
    for a, b in zip(plain.parameters(), recorded.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.grad is not None
        assert b.grad is not None
        assert torch.equal(a.grad, b.grad)


def test_masks_draw_what_plain_training_draws() -> None:
    model = mlp()
    expected = plain_gradient(model, IMAGES, LABELS)
    torch.manual_seed(1)
    with record_step(model, masks=True) as step:
        backward(model, IMAGES, LABELS)
    assert same(step.update, expected)
    (tape,) = step.masks
    assert [d.name for d in tape] == ["3#0"]
    assert step.update.facts.masks == []


def test_masks_survive_activation_checkpoints() -> None:
    from torch.utils.checkpoint import checkpoint

    inner = mlp()

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Any:
            return checkpoint(self.inner, x, use_reentrant=False)

    model = Checkpointed()
    for masks in (False, True):
        model.zero_grad()
        torch.manual_seed(1)
        with record_step(model, masks=masks) as step:
            backward(model, IMAGES, LABELS)
        expected = plain_gradient(inner, IMAGES, LABELS)
        found = step.update.gradients
        for name, value in expected.items():
            torch.testing.assert_close(found[f"inner.{name}"], value)
        assert len(step.masks) == masks


def test_masks_of_compiled_code_are_refused() -> None:
    model: Any = torch.compile(mlp(), backend="eager")
    with (
        pytest.raises(ConfigError, match=r"expected the plain module"),
        record_step(model, masks=True),
    ):
        pass


def test_clipping_before_the_step_is_part_of_what_is_sent() -> None:
    model = mlp(0.0)
    plain = plain_gradient(model, IMAGES, LABELS)
    norm = torch.cat([g.flatten() for g in plain.values()]).norm()
    for inside in (True, False):
        with record_step(model) as step:
            optimizer = sgd(model, lr=1e-9)
            optimizer.zero_grad()
            backward(model, IMAGES, LABELS)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            if inside:
                optimizer.step()
        sent = torch.cat([g.flatten() for g in step.update.gradients.values()])
        assert float(norm) > 0.1
        assert float(sent.norm()) == pytest.approx(0.1, rel=1e-4)


def test_a_closure_is_one_step() -> None:
    model = mlp()
    expected = plain_gradient(model, IMAGES, LABELS)
    optimizer = sgd(model)

    def closure() -> float:
        optimizer.zero_grad()
        return float(backward(model, IMAGES, LABELS).detach())

    torch.manual_seed(1)
    with record_step(model) as step:
        optimizer.step(closure)
    assert same(step.update, expected)


def test_micro_batches_are_added_up_and_counted() -> None:
    model = mlp(0.0)
    images, labels = batch(4)
    expected = plain_gradient(model, images, labels)
    optimizer = sgd(model)
    with record_step(model) as step:
        optimizer.zero_grad()
        for i in range(0, 4, 2):
            loss = F.cross_entropy(model(images[i : i + 2]), labels[i : i + 2]) / 2
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert step.update.facts.micro_batches == 2
    for name, value in expected.items():
        torch.testing.assert_close(step.update.gradients[name], value)


def test_two_optimisers_on_two_halves_are_one_step() -> None:
    model = mlp()
    expected = plain_gradient(model, IMAGES, LABELS)
    halves = [sgd(module) for module in (model[1], model[4])]  # type: ignore[index]
    torch.manual_seed(1)
    with record_step(model) as step:
        backward(model, IMAGES, LABELS)
        for half in halves:
            half.step()
            half.zero_grad()
    assert same(step.update, expected)


def test_an_optimiser_of_another_model_does_not_matter() -> None:
    model, other = mlp(), mlp(seed=2)
    with record_step(model) as step:
        for _ in range(2):
            backward(other, IMAGES, LABELS)
            sgd(other).step()
        backward(model, IMAGES, LABELS)
    assert step.update.facts.micro_batches == 1


def test_two_steps_are_refused_before_the_second() -> None:
    model = mlp()
    optimizer = sgd(model)
    after_one: list[Tensor] = []

    def train() -> None:
        with record_step(model):
            for _ in range(2):
                optimizer.zero_grad()
                backward(model, IMAGES, LABELS)
                optimizer.step()
                after_one.append(next(model.parameters()).detach().clone())

    with pytest.raises(ConfigError, match=r"expected one local step, got more than"):
        train()
    assert len(after_one) == 1
    assert torch.equal(after_one[0], next(model.parameters()))


@pytest.mark.parametrize("reset", [True, False])
def test_two_steps_by_hand_are_refused(reset: bool) -> None:
    model = mlp(0.0)

    def train() -> None:
        with record_step(model):
            for _ in range(2):
                backward(model, IMAGES, LABELS)
                with torch.no_grad():
                    for p in model.parameters():
                        if p.grad is not None:
                            p.sub_(0.1 * p.grad)
                if reset:
                    model.zero_grad()

    with pytest.raises(ConfigError, match=r"got more than one .*used or reset"):
        train()


def test_a_gradient_left_from_before_is_refused_by_name() -> None:
    model = mlp()
    backward(model, IMAGES, LABELS)
    with (
        pytest.raises(ConfigError, match=r"'4\.bias': expected no gradient from"),
        record_step(model),
    ):
        backward(model, IMAGES, LABELS)


@pytest.mark.parametrize("run", [True, False])
def test_a_step_without_a_gradient_is_refused(run: bool) -> None:
    model = mlp()

    def train() -> None:
        with record_step(model):
            if run:
                plain_gradient(model, IMAGES, LABELS)

    with pytest.raises(ConfigError, match=r"no gradient in any parameter of Sequent"):
        train()


def test_a_gradient_that_is_not_finite_names_its_layer() -> None:
    model = conv()
    with torch.no_grad():
        model[4].weight[0, 0] = float("nan")  # type: ignore[index]
    with (
        pytest.raises(ConfigError, match=r"update\['0\.weight'\].*a finite gradient"),
        record_step(model),
    ):
        backward(model, IMAGES, LABELS)


def test_a_skipped_step_of_the_grad_scaler_is_refused() -> None:
    model = mlp(0.0)
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)

    def train() -> None:
        with record_step(model):
            loss = F.cross_entropy(model(IMAGES), LABELS)
            scaler.scale(loss * 1e6).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)

    with pytest.raises(ConfigError, match=r"a finite gradient.*GradScaler"):
        train()


def test_the_factor_of_the_grad_scaler_is_gone() -> None:
    model = mlp(0.0)
    expected = plain_gradient(model, IMAGES, LABELS)
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with record_step(model) as step:
        loss = F.cross_entropy(model(IMAGES), LABELS)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
    for name, value in expected.items():
        torch.testing.assert_close(step.update.gradients[name], value)


def test_autocast_keeps_the_type_of_the_parameters() -> None:
    model = mlp()
    with record_step(model) as step, torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(IMAGES), LABELS)
        loss.backward()  # type: ignore[no-untyped-call]
    assert {g.dtype for g in step.update.gradients.values()} == {torch.float32}
    half = mlp().to(torch.bfloat16)
    with record_step(half) as step:
        backward(half, IMAGES.bfloat16(), LABELS)
    assert {g.dtype for g in step.update.gradients.values()} == {torch.bfloat16}
    step.update.check(half)


def test_frozen_parameters_are_not_shared() -> None:
    model = mlp()
    model[1].requires_grad_(False)  # type: ignore[index]
    with record_step(model) as step:
        backward(model, IMAGES, LABELS)
    assert list(step.update.gradients) == ["4.weight", "4.bias"]
    step.update.check(model)


def test_a_parameter_without_a_part_in_the_step_is_absent_not_missing() -> None:
    model = nn.ModuleDict({"used": mlp(), "spare": nn.Linear(2, 2)})
    with record_step(model) as step:
        backward(model["used"], IMAGES, LABELS)
    assert step.update.facts.absent == ["spare.weight", "spare.bias"]
    assert step.update.facts.image_shape is None
    step.update.check(model)


def test_tied_weights_are_listed_once_with_their_whole_gradient() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8, bias=False)
            self.b = nn.Linear(8, 8, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.relu(self.a(x)))  # type: ignore[no-any-return]

    model, x = Tied(), torch.rand(2, 8)
    expected = plain_gradient(model, x, torch.tensor([0, 1]))
    with record_step(model) as step:
        backward(model, x, torch.tensor([0, 1]))
    assert same(step.update, expected)
    assert list(step.update.gradients) == ["a.weight"]
    twice = dict.fromkeys(("a.weight", "b.weight"), step.update.gradients["a.weight"])
    Update.from_gradients(twice).check(model)
    twice["b.weight"] = twice["b.weight"] * 2
    with pytest.raises(ConfigError, match=r"'b\.weight'.*the same gradient as 'a\.w"):
        Update.from_gradients(twice).check(model)


def test_sparse_gradients_become_ordinary_ones() -> None:
    model = nn.Sequential(
        nn.Embedding(5, 3, sparse=True), nn.Flatten(), nn.Linear(6, 2)
    )
    with record_step(model) as step:
        backward(model, torch.tensor([[0, 2]]), torch.tensor([1]))
    gradient = step.update.gradients["0.weight"]
    assert gradient.layout is torch.strided
    assert gradient.any(1).tolist() == [True, False, True, False, False]


@pytest.mark.parametrize(
    "wrap", [nn.DataParallel, lambda m: torch.compile(m, backend="eager")]
)
def test_wrappers_are_seen_through(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = mlp(0.0)
    expected = plain_gradient(model, IMAGES, LABELS)
    wrapped = wrap(model)
    with record_step(wrapped) as step:
        backward(wrapped, IMAGES, LABELS)
    assert list(step.update.gradients) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(step.update.gradients[name], value)
    assert step.update.facts.image_shape == (3, 16, 16)
    step.update.check(wrapped)


def test_modes_are_noted() -> None:
    model = mlp().eval()
    with record_step(model) as step:
        backward(model, IMAGES, LABELS)
    assert step.update.facts.mode == "eval"
    model[3].train()  # type: ignore[index]
    model.zero_grad()
    with record_step(model) as step:
        backward(model, IMAGES, LABELS)
    assert step.update.facts.mode == "mixed"


def test_weights_loaded_inside_are_the_ones_of_the_step() -> None:
    model, server = mlp(), mlp(seed=5)
    with record_step(model) as step:
        model.load_state_dict(server.state_dict())
        backward(model, IMAGES, LABELS)
        sgd(model).step()
    step.update.check(server)
    with pytest.raises(ConfigError, match="made with other weights"):
        step.update.check(model)


def test_parameters_that_are_replaced_inside_are_refused() -> None:
    model = mlp()

    def train() -> None:
        with record_step(model):
            state = {n: v.clone() for n, v in model.state_dict().items()}
            model.load_state_dict(state, assign=True)
            backward(model, IMAGES, LABELS)

    with pytest.raises(ConfigError, match=r"'1\.weight'.*same trainable parameters"):
        train()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("masks", [False, True])
def test_hooks_are_gone_after_an_error(error: type[BaseException], masks: bool) -> None:
    model = mlp()
    calls: list[str] = []
    model.register_forward_pre_hook(lambda *_: calls.append("pre"))
    model[1].weight.register_hook(lambda _: calls.append("a"))  # type: ignore[index]
    model[1].weight.register_hook(lambda _: calls.append("b"))  # type: ignore[index]
    before = hooks(model)
    steps: list[RecordedStep] = []

    def train() -> None:
        with record_step(model, masks=masks) as step:
            steps.append(step)
            backward(model, IMAGES, LABELS)
            raise error

    with pytest.raises(error):
        train()
    assert hooks(model) == before
    assert calls == ["pre", "a", "b"]
    with pytest.raises(ConfigError, match="a finished step"):
        _ = steps[0].update


def test_hooks_are_gone_after_a_forward_pass_that_fails() -> None:
    model = mlp()
    before = hooks(model)
    with pytest.raises(RuntimeError), record_step(model, masks=True):
        model(torch.rand(1, 5))
    assert hooks(model) == before
    # No recorder is left running: dropout draws from torch itself again.
    torch.manual_seed(1)
    a = model(IMAGES)
    torch.manual_seed(1)
    assert torch.equal(a, model(IMAGES))


def test_the_model_can_be_copied_inside() -> None:
    model = mlp()
    with record_step(model) as step:
        copied = copy.deepcopy(model)
        backward(copied, IMAGES, LABELS)
        backward(model, IMAGES, LABELS)
    assert step.update.facts.micro_batches == 1


def test_importing_the_name_loads_no_torch() -> None:
    code = "import privaudit, sys; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == 0
