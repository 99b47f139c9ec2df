"""Architectures off the shelf: audited as they are, every random call listed.

The lists are written by hand from the architectures, never from what the tool prints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from privaudit import Auditor, Budget
from privaudit.attacks import ClosedForm
from privaudit.inventory import Inventory
from privaudit.result import AuditResult
from tests.unit.test_guard import snapshot

Call = tuple[str, str, float, bool, bool]
"""name, kind, p, active, in_eval"""
SHORT = Budget(seconds=30, iterations=2, restarts=1)
"""The default ladder on models as they are; only the time is bounded."""


def drop(name: str, p: float) -> Call:
    return (f"{name}#0", "dropout", p, p > 0, False)


def attention(name: str, p: float) -> Call:
    return (f"{name}#0", "attention-prob dropout", p, p > 0, False)


def path(name: str, p: float) -> Call:
    return (f"{name}#0", "drop path", p, p > 0, False)


def listed(found: Inventory) -> list[Call]:
    return [
        (c.name, c.kind, -1.0 if c.p is None else round(c.p, 6), c.active, c.in_eval)
        for c in found.stochastic
    ]


# ---- the models, with what is random in them


def resnet18() -> nn.Module:
    return torchvision.models.resnet18(num_classes=10)  # type: ignore[no-any-return]


def tv_vit() -> nn.Module:
    return torchvision.models.VisionTransformer(  # type: ignore[no-any-return]
        image_size=16, patch_size=8, num_layers=2, num_heads=2, hidden_dim=8,
        mlp_dim=16, dropout=0.1, attention_dropout=0.2, num_classes=5,
    )  # fmt: skip


TV_VIT = [
    drop("encoder.dropout", 0.1),
    attention("encoder.layers.encoder_layer_0.self_attention", 0.2),
    drop("encoder.layers.encoder_layer_0.dropout", 0.1),
    drop("encoder.layers.encoder_layer_0.mlp.2", 0.1),
    drop("encoder.layers.encoder_layer_0.mlp.4", 0.1),
    attention("encoder.layers.encoder_layer_1.self_attention", 0.2),
    drop("encoder.layers.encoder_layer_1.dropout", 0.1),
    drop("encoder.layers.encoder_layer_1.mlp.2", 0.1),
    drop("encoder.layers.encoder_layer_1.mlp.4", 0.1),
]


def timm_vit() -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(  # type: ignore[no-any-return]
        img_size=16, patch_size=8, embed_dim=8, depth=2, num_heads=2, num_classes=5,
        pos_drop_rate=0.05, drop_rate=0.15, proj_drop_rate=0.1, attn_drop_rate=0.3,
        drop_path_rate=0.2,
    )  # fmt: skip


# Drop path rises linearly with depth: 0 in the first block, where timm builds an
# identity in its place.
TIMM_VIT = [
    drop("pos_drop", 0.05),
    attention("blocks.0.attn", 0.3),
    drop("blocks.0.attn.proj_drop", 0.1),
    drop("blocks.0.mlp.drop1", 0.1),
    drop("blocks.0.mlp.drop2", 0.1),
    attention("blocks.1.attn", 0.3),
    drop("blocks.1.attn.proj_drop", 0.1),
    path("blocks.1.drop_path1", 0.2),
    drop("blocks.1.mlp.drop1", 0.1),
    drop("blocks.1.mlp.drop2", 0.1),
    path("blocks.1.drop_path2", 0.2),
    drop("head_drop", 0.15),
]


def hf_vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=16, image_size=16, patch_size=8, num_labels=5,
        hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.2,
    )  # fmt: skip
    return ViTForImageClassification(config)  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Patches, one stock encoder layer, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 8, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        return self.head(self.layer(tokens).mean(1))  # type: ignore[no-any-return]


ENCODER = [
    attention("layer.self_attn", 0.3),
    drop("layer.dropout1", 0.3),
    drop("layer.dropout", 0.3),
    drop("layer.dropout2", 0.3),
]


class Functional(nn.Module):
    """No dropout module anywhere, and one call that forgot ``training=``."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(768, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(F.relu(self.a(x.flatten(1))), 0.4, self.training)
        return self.b(F.dropout(x, 0.2))  # type: ignore[no-any-return]


FUNCTIONAL: list[Call] = [
    ("Functional#0", "dropout", 0.4, True, False),
    ("Functional#1", "dropout", 0.2, True, True),
]


def swin() -> nn.Module:
    return torchvision.models.SwinTransformer(  # type: ignore[no-any-return]
        patch_size=[2, 2], embed_dim=8, depths=[1, 1], num_heads=[1, 2],
        window_size=[2, 2], dropout=0.1, attention_dropout=0.2,
        stochastic_depth_prob=0.3, num_classes=5,
    )  # fmt: skip


def swin_block(name: str) -> list[Call]:
    # Swin spells its attention out: F.dropout on the probabilities, then on the
    # projection, both called by the attention module itself.
    return [
        (f"{name}.attn#0", "dropout", 0.2, True, False),
        (f"{name}.attn#1", "dropout", 0.1, True, False),
    ]


SWIN = [
    *swin_block("features.1.0"),
    drop("features.1.0.mlp.2", 0.1),
    drop("features.1.0.mlp.4", 0.1),
    *swin_block("features.3.0"),
    path("features.3.0.stochastic_depth", 0.3),
    drop("features.3.0.mlp.2", 0.1),
    drop("features.3.0.mlp.4", 0.1),
    ("features.3.0.stochastic_depth#1", "drop path", 0.3, True, False),
]

ZOO: dict[str, tuple[Callable[[], nn.Module], int, list[Call] | None]] = {
    "resnet18": (resnet18, 64, []),
    "torchvision vit": (tv_vit, 16, TV_VIT),
    "timm vit": (timm_vit, 16, TIMM_VIT),
    "encoder layer": (Encoder, 16, ENCODER),
    "functional": (Functional, 16, FUNCTIONAL),
    "swin": (swin, 16, SWIN),
}


def images(size: int, count: int = 1) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def check(result: AuditResult) -> None:
    preflight = result.record.preflight
    assert preflight.replay_error is not None
    assert preflight.replay_error <= 1e-5
    assert preflight.loss_at_truth is not None
    assert preflight.loss_at_truth <= 1e-4
    assert preflight.double_backward == "ok"
    assert preflight.notes == []
    assert result.record.inventory.census


@pytest.mark.parametrize("name", ZOO)
def test_off_the_shelf(name: str) -> None:
    build, size, expected = ZOO[name]
    torch.manual_seed(0)
    model = build()
    before = snapshot(model)
    result = Auditor(model, budget=SHORT).audit(images(size))
    active = [c for c in listed(result.record.inventory) if c[3]]
    assert active == expected
    check(result)
    assert snapshot(model) == before


def test_transformers_vit() -> None:
    """Names moved between releases of transformers; calls and rates did not."""
    torch.manual_seed(0)
    model = hf_vit()
    before = snapshot(model)
    result = Auditor(model, budget=SHORT).audit(images(16))
    calls = listed(result.record.inventory)
    assert [(k, p, a, e) for _, k, p, a, e in calls] == [
        ("dropout", 0.1, True, False),
        *[("attention-prob dropout", 0.2, True, False),
          ("dropout", 0.1, True, False),
          ("dropout", 0.1, True, False)] * 2,
    ]  # fmt: skip
    assert calls[0][0] == "vit.embeddings.dropout#0"
    assert [".0.attention" in calls[1][0], ".1.attention" in calls[4][0]] == [True] * 2
    check(result)
    assert snapshot(model) == before


@pytest.mark.parametrize("name", ["resnet18", "timm vit", "encoder layer"])
@pytest.mark.parametrize("error", [RecursionError, KeyboardInterrupt])
def test_untouched_when_the_audit_breaks_off(
    name: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        with torch.no_grad():
            next(target.model.parameters()).zero_()
        raise error

    build, size, _ = ZOO[name]
    model = build()
    before = snapshot(model)
    monkeypatch.setattr(ClosedForm, "run", run)
    auditor = Auditor(model, attacks=["closed_form"], budget=SHORT)
    # Ctrl-C ends the attacks; what was done until then is judged and kept.
    assert auditor.audit(images(size)).verdict.word == "inconclusive"
    assert snapshot(model) == before


@pytest.mark.parametrize(
    ("build", "size", "expected"),
    [
        (torchvision.models.mobilenet_v3_small, 64, [drop("classifier.2", 0.2)]),
        (torchvision.models.efficientnet_b0, 64, None),
    ],
)
def test_mobile_families(
    build: Callable[..., nn.Module], size: int, expected: list[Call] | None
) -> None:
    torch.manual_seed(0)
    model = build(num_classes=5)
    before = snapshot(model)
    auditor = Auditor(model, attacks=["closed_form"], budget=SHORT)
    result = auditor.audit(images(size, 2))
    check(result)
    if expected is None:
        # Sixteen blocks; stochastic depth rises by 0.2 / 16 a block and sits on those
        # with a residual.
        residual = [(2, 1, 2), (3, 1, 4), (4, 1, 6), (4, 2, 7), (5, 1, 9), (5, 2, 10),
                    (6, 1, 12), (6, 2, 13), (6, 3, 14)]  # fmt: skip
        expected = [
            path(f"features.{s}.{b}.stochastic_depth", round(0.2 * i / 16, 6))
            for s, b, i in residual
        ]
        expected.append(drop("classifier.0", 0.2))
    assert listed(result.record.inventory) == expected
    assert snapshot(model) == before


@pytest.mark.slow
def test_vit_b_16_at_full_size() -> None:
    torch.manual_seed(0)
    model = torchvision.models.vit_b_16(num_classes=10)
    before = snapshot(model)
    auditor = Auditor(model, budget=Budget(seconds=60, iterations=2, restarts=1))
    result = auditor.audit(images(224))
    # Its rates are all 0: twelve layers of one attention and three dropouts, and one
    # dropout in front.
    calls = listed(result.record.inventory)
    assert not any(active for *_, active, _ in calls)
    assert [k for _, k, *_ in calls].count("dropout") == 1 + 12 * 3
    check(result)
    assert snapshot(model) == before
