"""LPIPS against its authors' package, DINO similarity against a direct computation.

On random weights in files named like the real ones: agreement needs no real ones.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privaudit._controls import shipped_images
from privaudit.metrics import Dino, Lpips
from privaudit.metrics.lpips import SMALLEST, Net
from tests.pretrained import backbone_file, dino_file

NETS: list[Net] = ["alex", "vgg", "squeeze"]
SIDE = 64


@pytest.fixture(scope="module", params=NETS)
def backbone(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Net, Path]]:
    """One network's file; removed at the end, VGG-16's convolutions have 59 MB."""
    torch.manual_seed(0)
    file = backbone_file(request.param, tmp_path_factory.mktemp("weights"))
    yield request.param, file
    file.unlink()


def pairs(side: int = SIDE) -> tuple[Tensor, Tensor]:
    images = shipped_images(4, (3, side, side))
    return images[:3], torch.stack([images[0], images[1] * 0.7, images[3]])


def by_the_authors(net: Net, file: Path, truth: Tensor, guess: Tensor) -> list[float]:
    """The package ``lpips``, its backbone filled from ``file``."""
    lpips = pytest.importorskip("lpips")
    with warnings.catch_warnings():
        # It calls torchvision in a way that is deprecated since 0.13.
        warnings.simplefilter("ignore", UserWarning)
        model = lpips.LPIPS(net=net, pnet_rand=True, verbose=False)
    state = torch.load(file, weights_only=True)
    names = model.net.state_dict()
    model.net.load_state_dict(
        {name: state[re.sub(r"^slice\d+", "features", name)] for name in names}
    )
    with torch.no_grad():
        values: Tensor = model(truth, guess, normalize=True)
    return values.flatten().tolist()


def test_lpips_equals_the_package(backbone: tuple[Net, Path]) -> None:
    net, file = backbone
    truth, guess = pairs()
    metric = Lpips(net=net, weights=str(file.parent), verify=False)
    assert metric.unavailable() == ""
    scores = metric.score(truth, guess)
    expected = by_the_authors(net, file, truth, guess)
    assert [s.value for s in scores] == pytest.approx(expected, abs=1e-5)
    assert scores[0].value == 0.0
    assert expected[2] > 0.01, "otherwise nothing was compared"


def test_lpips_has_a_smallest_size(backbone: tuple[Net, Path]) -> None:
    net, file = backbone
    metric = Lpips(net=net, weights=str(file.parent), verify=False)
    side = SMALLEST[net]
    assert metric.score(*pairs(side))[2].value
    truth, guess = pairs(side - 1)
    note = f"lpips is not defined below {side} pixels a side"
    assert metric.score(truth, guess)[0].note == note
    with pytest.raises(RuntimeError):
        metric.measure(truth, guess)


def test_a_score_is_that_of_its_own_image_and_grey_is_repeated(
    backbone: tuple[Net, Path],
) -> None:
    net, file = backbone
    metric = Lpips(net=net, weights=str(file.parent), verify=False)
    truth, guess = pairs()
    alone = metric.score(truth[1:2], guess[1:2])[0]
    assert alone == metric.score(truth, guess)[1]
    grey = [images[:, :1] for images in (truth, guess)]
    single = metric.score(grey[0], grey[1])[2]
    three = metric.score(grey[0].expand(-1, 3, -1, -1), grey[1].expand(-1, 3, -1, -1))
    assert single.value == three[2].value
    assert single.note == "grey repeated to three channels"


def class_tokens(model: nn.Module, layer: nn.Module, images: Tensor) -> Tensor:
    """What the last block hands to the final norm, for the class token."""
    caught: list[Tensor] = []

    def catch(_: nn.Module, __: object, output: Tensor | tuple[Tensor, ...]) -> None:
        caught.append(output if isinstance(output, Tensor) else output[0])

    hook = layer.register_forward_hook(catch)
    sized = F.interpolate(images, (224, 224), mode="bilinear", antialias=True)
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    with torch.no_grad():
        model((sized - mean) / std)
    hook.remove()
    return caught[0][:, 0]


def sharpened(model: nn.Module) -> nn.Module:
    """Fresh ViTs give all images one token: larger weights tell them apart."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.dim() > 1 and "pos" not in name:
                value.mul_(3)
    return model.eval()


def vit_of_timm() -> tuple[nn.Module, nn.Module]:
    """Its names are those of DINO's own file."""
    timm = pytest.importorskip("timm")
    model = sharpened(timm.create_model("vit_small_patch16_224.dino", pretrained=False))
    return model, model.blocks[-1]  # type: ignore[index, return-value]


def test_dino_equals_a_direct_computation(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, layer = vit_of_timm()
    dino_file(model.state_dict(), tmp_path)
    compare_dino(model, layer, Dino(weights=str(tmp_path)))


def test_dino_reads_what_transformers_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=384, num_attention_heads=6, intermediate_size=1536,
        layer_norm_eps=1e-6,
    )  # fmt: skip
    model = sharpened(transformers.ViTModel(config))
    # As the hub's cache has it.
    folder = tmp_path / "models--facebook--dino-vits16" / "snapshots" / "1234abcd"
    model.save_pretrained(folder)  # type: ignore[operator]
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "nothing"))
    monkeypatch.delenv("PRIVAUDIT_WEIGHTS", raising=False)
    compare_dino(model, model.layers[-1], Dino())  # type: ignore[index, arg-type]


def compare_dino(model: nn.Module, layer: nn.Module, metric: Dino) -> None:
    truth, guess = pairs(224)
    a, b = (class_tokens(model, layer, images) for images in (truth, guess))
    expected = F.cosine_similarity(a, b).tolist()
    assert metric.unavailable() == ""
    scores = metric.score(truth, guess)
    assert [s.value for s in scores] == pytest.approx(expected, abs=1e-5)
    assert scores[0].value == pytest.approx(1.0)
    assert expected[2] < 0.99, "otherwise nothing was compared"
    assert scores[2].note == ""


def test_dino_resizes_and_says_so(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, layer = vit_of_timm()
    dino_file(model.state_dict(), tmp_path)
    truth, guess = (images[:, :1] for images in pairs(32))
    three = [images.expand(-1, 3, -1, -1) for images in (truth, guess)]
    a, b = (class_tokens(model, layer, images) for images in three)
    score = Dino(weights=str(tmp_path)).score(truth, guess)[2]
    expected = F.cosine_similarity(a, b).tolist()[2]
    assert score.value == pytest.approx(expected, abs=1e-5)
    note = "grey repeated to three channels; resized from 32x32 to 224x224"
    assert score.note == note
