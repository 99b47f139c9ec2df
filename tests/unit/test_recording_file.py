"""Update: the file, and every refusal by name."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from privaudit.errors import ConfigError
from privaudit.recording import RecordedStep, Update, record_step
from tests.unit.recording import backward, batch, mlp, plain_gradient, sgd

IMAGES, LABELS = batch()


def recorded(model: nn.Module, *, masks: bool = False) -> RecordedStep:
    torch.manual_seed(1)
    with record_step(model, masks=masks) as step:
        backward(model, IMAGES, LABELS)
    model.zero_grad()
    return step


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return recorded(mlp()).save(tmp_path / "update.safetensors")


def test_a_file_holds_what_a_client_sends_and_nothing_else(file: Path) -> None:
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [f.name for f in file.parent.iterdir()] == ["update.safetensors"]
    with safe_open(file, framework="pt") as opened:
        assert set(opened.keys()) == {"1.weight", "1.bias", "4.weight", "4.bias"}
        facts = json.loads(opened.metadata()["privaudit"])
    assert facts["masks"] == []
    assert set(facts) == {
        "format", "version", "source", "model", "privaudit", "torch", "reduction",
        "mode", "autocast", "image_shape", "micro_batches", "lr", "rounding", "absent",
        "weights", "masks", "local_steps", "optimizer", "momentum",
    }  # fmt: skip


def test_there_and_back(file: Path) -> None:
    model = mlp()
    update = Update.load(file)
    expected = plain_gradient(model, IMAGES, LABELS)
    assert set(update.gradients) == set(expected)
    assert all(torch.equal(update.gradients[n], g) for n, g in expected.items())
    assert update.masks == ()
    update.check(model)
    assert list(update.fit(model).gradients) == list(expected)
    assert update.digest() == recorded(mlp()).update.digest()


def test_masks_are_saved_only_when_asked_for(tmp_path: Path) -> None:
    step = recorded(mlp(), masks=True)
    plain = Update.load(step.save(tmp_path / "a"))
    assert plain.masks == ()
    full = Update.load(step.save(tmp_path / "b", masks=True))
    assert set(full.gradients) == set(plain.gradients)
    (tape,), (own,) = full.masks, step.masks
    assert [(d.name, d.kind, d.p) for d in tape] == [(d.name, d.kind, d.p) for d in own]
    for a, b in zip(tape, own, strict=True):
        assert a.value is not None
        assert b.value is not None
        assert torch.equal(a.value, b.value)
    with pytest.raises(ConfigError, match=r"expected recorded masks, got none"):
        recorded(mlp()).save(tmp_path / "c", masks=True)


def test_a_mask_that_is_gone_is_named(tmp_path: Path) -> None:
    path = recorded(mlp(), masks=True).save(tmp_path / "u", masks=True)
    tensors, metadata = read(path)
    del tensors["privaudit-mask/0/00000"]
    save_file(tensors, path, metadata)
    with pytest.raises(ConfigError, match=r"privaudit-mask/0/00000.*none of that name"):
        Update.load(path)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(path, framework="pt") as opened:
        tensors = {n: opened.get_tensor(n) for n in opened.keys()}  # noqa: SIM118
        return tensors, dict(opened.metadata())


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected a readable file"):
        Update.load(tmp_path / "nowhere.safetensors")


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_truncated_file(file: Path, keep: int) -> None:
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ConfigError, match=r"a complete safetensors file.*truncated"):
        Update.load(file)


def test_a_file_that_is_not_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "update.pt"
    torch.save({"a": torch.ones(1)}, path)
    with pytest.raises(ConfigError, match=r"a complete safetensors file"):
        Update.load(path)


def test_safetensors_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"a": torch.ones(1)}, path)
    with pytest.raises(ConfigError, match=r"something else\. .*from_gradients"):
        Update.load(path)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"version": "2"}, r"version 1, got privaudit-update, version 2"),
        ({"format": "other"}, r"got other, version 1"),
        ({"mode": "sideways"}, r"got damaged ones"),
        ({"extra": 1}, r"got damaged ones"),
    ],
)
def test_facts_of_another_format(
    file: Path, change: dict[str, Any], match: str
) -> None:
    tensors, metadata = read(file)
    facts = json.loads(metadata["privaudit"]) | change
    save_file(tensors, file, {"privaudit": json.dumps(facts)})
    with pytest.raises(ConfigError, match=match):
        Update.load(file)


@pytest.mark.parametrize("text", ["[]", "{", "7"])
def test_facts_that_are_no_json_object(file: Path, text: str) -> None:
    tensors, _ = read(file)
    save_file(tensors, file, {"privaudit": text})
    with pytest.raises(ConfigError, match=r"got damaged ones"):
        Update.load(file)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"expected a place to write"):
        recorded(mlp()).save(tmp_path / "file" / "update.safetensors")


def without(name: str) -> Callable[[dict[str, Tensor]], None]:
    return lambda g: g.__delitem__(name)


def with_(name: str, value: Tensor) -> Callable[[dict[str, Tensor]], None]:
    return lambda g: g.__setitem__(name, value)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (without("4.bias"), r"update\['4\.bias'\].*got none for 1 of them \('4\.bias'"),
        (with_("9.weight", torch.ones(2)), r"update\['9\.weight'\].*a foreign tensor"),
        (with_("4.bias", torch.ones(2)), r"'4\.bias'.*shape \(10,\), got \(2,\)"),
        (with_("4.bias", torch.ones(10).half()), r"'4\.bias'.*float32.*float16"),
        (with_("4.bias", torch.full((10,), torch.inf)), r"'4\.bias'.*10 of 10 values"),
    ],
)
@pytest.mark.parametrize("saved", [True, False])
def test_what_the_model_cannot_have_made_is_refused_by_name(
    change: Callable[[dict[str, Tensor]], None],
    match: str,
    saved: bool,
    file: Path,
) -> None:
    tensors, metadata = read(file)
    change(tensors)
    if saved:
        save_file(tensors, file, metadata)
        update = Update.load(file)
    else:
        update = Update.from_gradients(tensors)
    with pytest.raises(ConfigError, match=match):
        update.check(mlp())


def test_a_tensor_that_is_frozen_in_the_model(file: Path) -> None:
    model = mlp()
    model[1].requires_grad_(False)  # type: ignore[index]
    with pytest.raises(ConfigError, match=r"'1\.\w+'.*a parameter that is frozen here"):
        Update.load(file).check(model)


def test_other_weights_are_refused_by_name_unless_wanted(file: Path) -> None:
    other = mlp()
    with torch.no_grad():
        other[4].bias[0] += 1e-6  # type: ignore[index]
    update = Update.load(file)
    with pytest.raises(ConfigError, match=r"weights of '4\.bias'.*in 1 of 4 tensors"):
        update.check(other)
    update.check(other, other_weights=True)


def test_gradients_of_another_framework() -> None:
    model = mlp()
    gradients = plain_gradient(model, IMAGES, LABELS)
    Update.from_gradients({f"module.{n}": g for n, g in gradients.items()}).check(model)
    Update.from_gradients({f"_orig_mod.{n}": g for n, g in gradients.items()}).check(
        model
    )
    absent = {**gradients, "4.bias": None}
    update = Update.from_gradients(absent)
    assert update.facts.absent == ["4.bias"]
    update.check(model)
    gradients["4.bias"].zero_()
    assert update.facts.weights == {}


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({}, r"got no tensor in it"),
        ({"a": None}, r"got no tensor in it"),
        ({"a": torch.ones(2, dtype=torch.int)}, r"update\['a'\].*got torch\.int32"),
        ({"a": [1.0]}, r"update\['a'\].*got <class 'list'>"),
    ],
)
def test_what_is_no_gradient(given: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Update.from_gradients(given)


class WithNorm(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 14**2, 3)
        )


def test_a_weight_difference_is_the_gradient() -> None:
    model = WithNorm()
    before = {n: v.clone() for n, v in model.state_dict().items()}
    images, labels = batch(2)
    labels = labels - 3
    expected = plain_gradient(model, images, labels)
    model.load_state_dict(before)
    optimizer = sgd(model, lr=0.5)
    backward(model, images, labels)
    optimizer.step()
    update = Update.from_delta(before, model.state_dict(), lr=0.5)
    model.load_state_dict(before)
    fitted = update.fit(model)
    for name, value in expected.items():
        torch.testing.assert_close(fitted.gradients[name], value, rtol=1e-3, atol=1e-6)
    assert fitted.left_out == dict.fromkeys(
        ("1.running_mean", "1.running_var"), "a buffer, which has no gradient"
    )
    facts = update.facts
    assert facts.source == "weight difference"
    assert facts.rounding is not None
    assert 0 < facts.rounding < 1e-2
    apart = torch.cat(
        [(fitted.gradients[n] - v).flatten() for n, v in expected.items()]
    )
    whole = torch.cat([v.flatten() for v in expected.values()])
    assert float(apart.norm() / whole.norm()) <= facts.rounding
    other = WithNorm()
    with pytest.raises(ConfigError, match="made with other weights"):
        update.check(other)


@pytest.mark.parametrize("lr", [None, 0, -0.1, float("nan"), float("inf")])
def test_a_weight_difference_needs_the_learning_rate(lr: float | None) -> None:
    state = {"a": torch.ones(1)}
    with pytest.raises(ConfigError, match=r"the learning rate of the step"):
        Update.from_delta(state, {"a": torch.zeros(1)}, lr=lr)


@pytest.mark.parametrize(
    ("after", "match"),
    [
        ({}, r"'a': expected the same tensors.*none in after"),
        ({"a": torch.ones(1), "b": torch.ones(1)}, r"'b'.*none in before"),
        ({"a": torch.ones(2)}, r"'a': expected shape \(1,\) as before, got \(2,\)"),
        ({"a": torch.ones(1)}, r"weights that changed"),
    ],
)
def test_states_that_do_not_belong_together(
    after: dict[str, Tensor], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        Update.from_delta({"a": torch.ones(1)}, after, lr=0.1)


def test_a_frozen_parameter_that_did_not_change_is_left_out() -> None:
    model = mlp(0.0)
    model[1].requires_grad_(False)  # type: ignore[index]
    before = {n: v.clone() for n, v in model.state_dict().items()}
    optimizer = sgd(model)
    backward(model, IMAGES, LABELS)
    optimizer.step()
    update = Update.from_delta(before, model.state_dict(), lr=0.1)
    model.load_state_dict(before)
    fitted = update.fit(model)
    assert list(fitted.gradients) == ["4.weight", "4.bias"]
    assert fitted.left_out["1.weight"] == "frozen, and unchanged"
