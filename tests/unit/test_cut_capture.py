"""What a cut sends and what the server makes of it; what may be in the way.

Case 46 of the hard cases, detached paths, in-place operations, hooks, wrong input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Graph
from torch.utils.checkpoint import checkpoint

from privaudit._pixels import Normalisation
from privaudit.errors import ConfigError, UnsupportedModelError
from privaudit.exposure import Cut, FeatureExposure, NodeCut, Pair, check_cut, resolve
from privaudit.exposure.cut_check import gradient_share
from privaudit.exposure.cut_resolve import require_float
from privaudit.types import Batch, FeatureLayout
from tests.unit.test_cut import Branches, Puts, X, finished, sent_at
from tests.unit.test_guard import snapshot

# ---- what the server gets


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x + self.inner(x))  # type: ignore[no-any-return]


def test_values_that_pass_beside_the_cut_are_found() -> None:
    model = Residual()
    found = check_cut(model, Cut("inner"), model, X)
    assert not found.complete
    assert found.error > 1e-3
    [finding] = found.findings
    assert finding.code == "split-incomplete"
    assert finding.where == "inner"
    whole = check_cut(model, Cut("out"), model, X)
    assert (whole.complete, whole.error, whole.findings) == (True, 0.0, ())


def test_random_features_are_found() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4), nn.Linear(4, 3)).train()
    found = check_cut(model, Cut("1"), model, X)
    assert not found.complete
    assert [f.code for f in found.findings] == ["split-random"]
    assert check_cut(model.eval(), Cut("1"), model, X).complete


def test_images_that_influence_each_other_are_found() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).train()
    assert [f.code for f in check_cut(model, Cut("1"), model, X).findings] == [
        "split-mixes-images"
    ]
    assert check_cut(model.eval(), Cut("1"), model, X).findings == ()


def test_windows_instead_of_images_are_refused() -> None:
    model = nn.Sequential(Puts(lambda x: x.reshape(4, 2)), nn.Linear(2, 3))
    with pytest.raises(ConfigError, match=r"first axis is the 2 image\(s\)"):
        check_cut(model, Cut("0"), model, X)


class Detached(nn.Module):
    """The graph ends behind ``a``; only ``b`` lies behind that."""

    def __init__(self, how: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.how = nn.Linear(4, 4), nn.Linear(4, 4), how

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.how(self.a(x)))  # type: ignore[no-any-return]


def no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x * 2


DETACHING: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.detach(), no_grad, lambda x: torch.from_numpy(x.detach().numpy()),
    lambda x: x.data, lambda x: F.one_hot(x.argmax(1), 4).float(),
]  # fmt: skip


@pytest.mark.parametrize("how", DETACHING)
def test_detached_paths_are_found_and_placed(how: Callable[[Tensor], Tensor]) -> None:
    model = Detached(how)
    [finding] = check_cut(model, Cut("b"), model, X).findings
    assert finding.code == "split-detached"
    assert finding.severity == "critical"
    assert "is cut after `a`" in finding.text
    assert "no defence" in finding.text
    assert check_cut(model, Cut("a"), model, X).findings == ()


class TwoWays(nn.Module):
    """One of two paths is detached."""

    def __init__(self, second: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.second = nn.Linear(4, 4), nn.Linear(4, 4), second
        self.add = Puts(lambda pair: pair[0] + pair[1])

    def forward(self, x: Tensor) -> Tensor:
        return self.add((self.a(x), self.b(self.second(x))))  # type: ignore[no-any-return]


class WrongDerivative(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Tensor:
        return grad


def doubled(x: Tensor) -> Tensor:
    return WrongDerivative.apply(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("second", [lambda x: x.detach(), no_grad, doubled])
def test_a_gradient_that_tells_only_a_part_is_found(
    second: Callable[[Tensor], Tensor],
) -> None:
    model = TwoWays(second)
    [finding] = check_cut(model, Cut("add"), model, X).findings
    assert finding.code == "split-gradient-differs"
    assert finding.severity == "warning"
    share = gradient_share(model, Cut("add"), model, X)
    assert share is not None
    assert share < 0.95


def test_a_right_gradient_explains_all() -> None:
    model = TwoWays(lambda x: 2 * x)
    assert check_cut(model, Cut("add"), model, X).findings == ()
    assert gradient_share(model, Cut("add"), model, X) == pytest.approx(1, abs=1e-3)
    still = TwoWays(lambda x: 0 * x)
    nn.init.zeros_(still.a.weight)
    assert gradient_share(still, Cut("add"), still, X) is None
    detached = Detached(lambda x: x.detach())
    assert gradient_share(detached, Cut("b"), detached, X) is None


def test_weights_made_in_inference_mode_are_named() -> None:
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    with pytest.raises(UnsupportedModelError, match="a gradient can follow") as error:
        check_cut(model, Cut("1"), model, X)
    assert "inference mode: 0.weight" in error.value.hint


def test_a_forward_that_fails_only_with_a_gradient() -> None:
    def fail(x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError("only for inference.")
        return x

    model = nn.Sequential(nn.Linear(4, 4), Puts(fail))
    with pytest.raises(UnsupportedModelError, match="got only for inference"):
        check_cut(model, Cut("1"), model, X)


# ---- what is in the way of a capture


def test_what_follows_in_place_does_not_change_what_was_sent() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    x = (10 * X - 5).requires_grad_(True)
    sent = sent_at(model, "0", x)
    assert torch.equal(sent, F.linear(x, model[0].weight, model[0].bias))
    assert float(sent.detach().min()) < 0
    assert torch.autograd.grad(sent.sum(), x)[0].abs().sum() > 0
    assert torch.equal(finished(model, "0", x), model(x))


class Swallows(nn.Module):
    """Goes on, and in place, whatever its part raises."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.kept = nn.Linear(4, 4), torch.zeros(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        try:
            out: Tensor = self.inner(x)
        except Exception:  # noqa: BLE001
            out = torch.zeros(2, 4)
        return out.add_(identity(x))


def identity(x: Tensor) -> Tensor:
    return x


def test_a_swallowed_stop_does_no_harm() -> None:
    model = Swallows()
    assert torch.equal(sent_at(model, "inner"), model.inner(X))


def test_features_given_are_not_changed_by_the_tail() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    given = torch.full((2, 4), -1.0)
    assert float(Cut("0").finish(model, lambda: model(X), given).max()) == 0
    assert float(given.max()) == -1


@pytest.mark.parametrize("split", ["layers.0.linear1", "layers.1.self_attn"])
def test_the_fast_path_is_off_during_a_capture(split: str) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval()
    x, padding = torch.rand(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    seen: list[bool] = []
    model.register_forward_pre_hook(
        lambda *_: seen.append(torch.backends.mha.get_fastpath_enabled())
    )
    torch.backends.mha.set_fastpath_enabled(True)
    for grad in (torch.no_grad(), torch.enable_grad()):
        for mask in (None, padding):
            with grad:
                run = lambda mask=mask: model(x, src_key_padding_mask=mask)  # noqa: E731
                cut = resolve(model, split, run)
                assert cut.capture(model, run).shape[:2] == (2, 5)
    assert torch.backends.mha.get_fastpath_enabled()
    assert not any(seen)


def test_inference_mode_around_is_left_for_the_capture() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    with torch.inference_mode():
        sent = Cut("0").capture(model, lambda: model(X.clone()))
        assert torch.is_inference_mode_enabled()
    assert not sent.is_inference()
    assert not sent.requires_grad


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_cut_inside_a_checkpoint_keeps_its_graph(reentrant: bool) -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    run = lambda x: checkpoint(inner, x, use_reentrant=reentrant)  # noqa: E731
    model = nn.Sequential(nn.Linear(4, 4), Puts(run))
    model.inner = inner
    x = X.clone().requires_grad_(True)
    sent = Cut("inner.0").capture(model, lambda: model[1](model[0](x)))
    assert torch.autograd.grad(sent.sum(), x)[0].abs().sum() > 0


# ---- nothing of the user's is changed


def busy() -> nn.Module:
    """Mixed modes, batch statistics, random draws and hooks of the user's own."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.3), nn.ReLU(inplace=True),
        nn.Flatten(), nn.utils.parametrizations.spectral_norm(nn.Linear(144, 5)),
    ).train()  # fmt: skip
    model[3].eval()
    model[1].register_forward_hook(lambda *_: None)
    return model


def test_the_model_is_untouched() -> None:
    model, x = busy(), torch.rand(2, 3, 8, 8)
    before = snapshot(model)
    cut = resolve(model, "3", lambda: model(x))
    check_cut(model, cut, model, x)
    assert snapshot(model) == before


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_the_model_is_untouched_when_it_breaks_off(error: type[BaseException]) -> None:
    def fail(_: Tensor) -> Tensor:
        raise error("in the middle")

    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), Puts(fail)).train()
    before = snapshot(model)
    for use in (
        lambda: Cut("2").capture(model, lambda: model(X)),
        lambda: Cut("0").finish(model, lambda: model(X), X),
        lambda: resolve(model, "0", lambda: model(X)),
    ):
        with pytest.raises((error, ConfigError), match="in the middle"):
            use()
    assert snapshot(model) == before


def test_hooks_of_the_user_run_first_and_stay() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    calls: list[str] = []
    model[0].register_forward_hook(lambda *_: calls.append("plain"))
    model[0].register_forward_hook(lambda *a: a[2] + 1)
    model.register_forward_hook(lambda *_: calls.append("always"), always_call=True)
    sent = Cut("0").capture(model, lambda: model(X))
    assert torch.equal(sent, F.linear(X, model[0].weight, model[0].bias) + 1)
    assert calls == ["plain", "always"]


# ---- what is not images that the model takes


@pytest.mark.parametrize(
    ("shape", "where"), [((2, 1, 8, 8), "0: Conv2d"), ((2, 3, 9, 9), "2: Linear")]
)
def test_images_of_a_wrong_kind(shape: tuple[int, ...], where: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5))
    x, wanted = torch.rand(shape), "expected images that the model takes"
    with pytest.raises(ConfigError, match=wanted) as error:
        resolve(model, "0", lambda: model(x))
    assert error.value.where == where


def test_integers_have_no_gradient() -> None:
    with pytest.raises(ConfigError, match="got uint8 of shape"):
        require_float(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(ConfigError, match="images of floats"):
        check_cut(model, Cut("0"), model, torch.zeros(2, 4, dtype=torch.long))


def test_a_cut_that_a_later_pass_does_not_reach() -> None:
    model = Branches()
    with pytest.raises(ConfigError, match=r"`branches\.b` was not executed"):
        Cut("branches.b").capture(model, lambda: model(X))
    with pytest.raises(ConfigError, match=r"1 call\(s\) in this forward pass"):
        Cut("branches.a", 3).finish(model, lambda: model(X), torch.zeros(2, 3))


# ---- pairs and graph nodes


def test_a_client_and_a_server_are_one_model() -> None:
    client = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    server = nn.Linear(4, 3)
    model = Pair(client, server)
    cut = resolve(model, "client", lambda: model(X))
    assert torch.equal(cut.capture(model, lambda: model(X)), client(X))
    assert torch.equal(finished(model, "client"), server(client(X)))
    assert check_cut(model, cut, model, X).complete


def test_what_a_client_puts_out_reaches_the_server_whole() -> None:
    client = Puts(lambda x: {"h": x, "size": 4})

    def scaled(out: Any) -> Any:
        return out["h"] * out["size"]

    model = Pair(client, Puts(scaled))
    assert torch.equal(finished(model, "client"), 4 * X)


def resnet() -> Any:
    import torchvision

    return torchvision.models.resnet18(num_classes=5).eval()


def test_a_node_of_the_graph_where_no_module_is() -> None:
    model, x = resnet(), torch.rand(2, 3, 32, 32)
    before = snapshot(model)
    cut = resolve(model, "layer1.0.add", lambda: model(x))
    assert isinstance(cut, NodeCut)
    sent = cut.capture(model, lambda: model(x))
    with torch.no_grad():
        start = model.maxpool(F.relu(model.bn1(model.conv1(x))))
        block = model.layer1[0]
        inner = block.bn2(block.conv2(F.relu(block.bn1(block.conv1(start)))))
    assert torch.allclose(sent, inner + start, atol=1e-5)
    assert float(sent.detach().min()) < 0  # before the in-place ReLU behind it
    assert torch.equal(
        cut.finish(model, lambda: model(torch.zeros_like(x)), sent), model(x)
    )
    assert check_cut(model, cut, model, x).complete
    assert snapshot(model) == before


def test_a_node_inside_a_residual_branch_is_not_whole() -> None:
    import timm

    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, embed_dim=32, depth=2, num_heads=2
    ).eval()
    x = torch.rand(2, 3, 32, 32)
    whole = resolve(model, "blocks.0.add_1", lambda: model(x))
    assert check_cut(model, whole, model, x).complete
    assert torch.allclose(
        whole.capture(model, lambda: model(x)), sent_at(model, "blocks.0", x)
    )
    part = resolve(
        model, "blocks.0.attn.scaled_dot_product_attention", lambda: model(x)
    )
    assert not check_cut(model, part, model, x).complete


def test_node_names_are_among_the_nearest() -> None:
    model, x = resnet(), torch.rand(1, 3, 32, 32)
    with pytest.raises(ConfigError, match=r"layer1\.0\.add"):
        resolve(model, "layer1.0.addd", lambda: model(x))


def test_a_pass_that_does_not_call_the_model_has_no_node() -> None:
    model, x = resnet(), torch.rand(1, 3, 32, 32)
    cut = resolve(model, "layer1.0.add", lambda: model(x))
    assert isinstance(cut, NodeCut)
    with pytest.raises(ConfigError, match="that calls the model"):
        cut.capture(model, lambda: None)
    same, graph = nn.Identity(), Graph()
    node = graph.placeholder("x")
    with pytest.raises(ConfigError, match="a traced graph with an output"):
        NodeCut("x", graph, node).finish(same, lambda: same(x), x)


# ---- the exposure


def test_the_exposure_observes_predicts_and_finishes() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5)).eval()
    images = torch.rand(2, 3, 8, 8)
    norm = Normalisation.of([0.5], [0.25])
    exposure = FeatureExposure(norm, Cut("0"), FeatureLayout("nchw", grid=(6, 6)))
    seen = exposure.observe(model, Batch(images, None))
    assert torch.equal(seen.features, model[0]((images - 0.5) / 0.25))
    assert seen.image_shape == (3, 8, 8)
    guess = images.clone().requires_grad_(True)
    assert torch.equal(exposure.predict(model, guess), seen.features)
    assert torch.equal(
        exposure.finish(model, torch.zeros_like(images), seen.features),
        model((images - 0.5) / 0.25),
    )
