"""Everything a user can hand over, and what is said of what cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from privaudit import Auditor, Client
from privaudit._pixels import Normalisation
from privaudit._sample import Sample, read_sample
from privaudit._shape import expected_channels
from privaudit.errors import ConfigError, PrivauditError

IMAGES = torch.rand(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
BYTES = (IMAGES * 255).round().byte()


def read(
    sample: Any, channels: int | None = 3, mean: Any = None, std: Any = None
) -> Sample:
    return read_sample(sample, Normalisation.of(mean, std), channels=channels)[0]


def picture(index: int = 0, mode: str = "RGB") -> Image.Image:
    return Image.fromarray(BYTES[index].permute(1, 2, 0).numpy()).convert(mode)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two PNG files of the two images."""
    paths = [tmp_path / "a.png", tmp_path / "b ü.png"]
    for index, path in enumerate(paths):
        picture(index).save(path)
    return paths


def forms(files: list[Path]) -> dict[str, Any]:
    return {
        "float": IMAGES,
        "float64": IMAGES.double(),
        "half": IMAGES.half(),
        "uint8": BYTES,
        "list of floats": list(IMAGES),
        "list of uint8": list(BYTES),
        "pictures": [picture(0), picture(1)],
        "paths": files,
        "strings": [str(f) for f in files],
        "tuple of pictures": (picture(0), picture(1)),
        "tuple of paths": tuple(files),
        "mixed": [files[0], BYTES[1]],
        "needs grad": IMAGES.clone().requires_grad_(),
        "strided": torch.stack([IMAGES, IMAGES], -1)[..., 0],
        "channels last memory": IMAGES.to(memory_format=torch.channels_last),
    }


FORMS = [
    "float", "float64", "half", "uint8", "list of floats", "list of uint8", "pictures",
    "paths", "strings", "tuple of pictures", "tuple of paths", "mixed", "needs grad",
    "strided", "channels last memory",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("labels", ["none", "tuple", "mapping", "list", "ints"])
def test_every_form_means_the_same_images(
    form: str, labels: str, files: list[Path]
) -> None:
    images = forms(files)[form]
    ids = torch.tensor([4, 7])
    if labels == "list" and not (isinstance(images, Tensor) and images.dim() == 4):
        pytest.skip("only a DataLoader's list of two tensors is (images, labels)")
    sample = {
        "none": images,
        "tuple": (images, ids),
        "mapping": {"pixel_values": images, "labels": ids},
        "list": [images, ids],
        "ints": (images, [4, 7]),
    }[labels]
    found = read(sample)
    assert found.images.shape == (2, 3, 12, 12)
    assert found.images.dtype == torch.float32
    assert not found.images.requires_grad
    assert float((found.images - IMAGES).abs().max()) <= 0.5 / 255 + 1e-6
    assert len(found.names) == 2
    assert found.keyword == ("pixel_values" if labels == "mapping" else None)
    if labels == "none":
        assert found.labels is None
    else:
        assert found.labels is not None
        assert found.labels.tolist() == [4, 7]


def test_the_users_tensor_is_not_written_to() -> None:
    images = IMAGES.clone()
    found = read(images)
    found.images.zero_()
    assert torch.equal(images, IMAGES)


def test_one_picture_alone(files: list[Path]) -> None:
    for one in (picture(), files[0], str(files[0])):
        assert read(one).images.shape == (1, 3, 12, 12)
        found = read((one, 7))
        assert found.labels is not None
        assert found.labels.tolist() == [7]


def test_two_images_are_not_images_and_labels(files: list[Path]) -> None:
    pairs: list[Any] = [tuple(IMAGES), (picture(0), picture(1)), tuple(files)]
    for pair in pairs:
        found = read(pair)
        assert len(found.images) == 2
        assert found.labels is None
    soft = torch.rand(2, 10)
    found = read((IMAGES, soft))
    assert found.labels is not None
    assert torch.equal(found.labels, soft)


@pytest.mark.parametrize("form", [tuple, list])
def test_behind_a_batch_stand_masks(form: Any, files: list[Path]) -> None:
    masks = torch.zeros(2, 12, 12, dtype=torch.long)
    found = read(form([IMAGES, masks]))
    assert len(found.images) == 2
    assert found.labels is not None
    assert torch.equal(found.labels, masks)
    assert read((files, masks)).labels is not None


def test_names_are_those_of_the_files(files: list[Path]) -> None:
    assert read(files).names == ("a.png", "b ü.png")
    assert read(IMAGES).names == ("image 0", "image 1")


def test_greyscale_and_palette() -> None:
    assert read([picture(0, "L")], channels=1).images.shape == (1, 1, 12, 12)
    assert read([picture(0, "P")]).images.shape == (1, 3, 12, 12)
    assert read([picture(0, "RGBA")], channels=4).images.shape == (1, 4, 12, 12)


def refused(sample: Any, match: str, **settings: Any) -> ConfigError:
    with pytest.raises(ConfigError, match=match) as caught:
        read(sample, **settings)
    error = caught.value
    assert error.where
    assert error.hint
    return error


def test_hard_case_8() -> None:
    refused(
        [torch.zeros(4, 8, 8)], r"image 0: expected 3 channels.*RGBA \(4 channels\)"
    )
    refused([torch.zeros(1, 8, 8)], r"image 0: .* got grey \(1 channels\)")
    refused([torch.zeros(8, 8, 3)], r"got channels last \(HWC\): \(8, 8, 3\)")
    refused(torch.zeros(1, 8, 8, 3), r"channels last \(HWC\).*permute\(2, 0, 1\)")
    assert read([BYTES[0]]).images.max() <= 1
    for mode in ("RGBA", "L", "CMYK", "1", "LA"):
        error = refused([picture(0), picture(1, mode)], "image 1: expected .* as the")
        assert f"{mode} (" in error.got
        assert "convert('RGB')" in error.hint
    for mode in ("I", "F"):  # where convert('RGB') would cut values off
        error = refused([picture(0), picture(1, mode)], "image 1: expected .* as the")
        assert f"{mode} (" in error.got
        assert "cut values off" in error.hint


@pytest.mark.parametrize("shape", [(12, 12, 3), (28, 20, 3), (28, 28, 1), (9, 9, 4)])
def test_hwc_is_seen_where_no_layer_states_the_channels(
    shape: tuple[int, int, int],
) -> None:
    refused(torch.zeros(1, *shape), "channels last", channels=None)
    turned = torch.zeros(1, *shape).permute(0, 3, 1, 2)
    assert read(turned, channels=None).images.shape == turned.shape


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 4, 4), (2, 30, 3), (12, 100, 1)])
def test_odd_shapes_that_are_no_hwc(shape: tuple[int, int, int]) -> None:
    assert read(torch.zeros(1, *shape), channels=None).images.shape == (1, *shape)


def test_a_damaged_file_among_many_is_listed_and_skipped(
    files: list[Path], tmp_path: Path
) -> None:
    whole = files[0].read_bytes()
    broken = {
        "empty.png": b"",
        "text.png": b"<html>not found</html>",
        "short.png": whole[: len(whole) // 2],
        "flipped.png": whole[:60] + bytes(255 - b for b in whole[60:90]) + whole[90:],
        "header.jpg": b"\xff\xd8\xff\xe0" + b"\0" * 50,
    }
    paths = [files[0]]
    for name, data in broken.items():
        (tmp_path / name).write_bytes(data)
        paths.append(tmp_path / name)
    paths += [tmp_path / "missing.png", tmp_path, files[1]]
    labels = torch.arange(len(paths))
    found = read((paths, labels))
    assert found.names == ("a.png", "b ü.png")
    assert [n for n, _ in found.skipped] == [*broken, "missing.png", tmp_path.name]
    assert all(why for _, why in found.skipped)
    assert found.labels is not None
    assert found.labels.tolist() == [0, len(paths) - 1]
    with pytest.raises(PrivauditError, match="at least one readable image"):
        read(paths[1:-1])


def test_a_picture_too_large_to_be_meant_is_skipped(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with pytest.raises(PrivauditError, match="decompression bomb"):
        read(files)


def test_the_audit_lists_what_it_skipped(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"not a picture")
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(432, 16), nn.GELU(), nn.Linear(16, 10)
    )
    auditor = Auditor(model, client=Client(batch_size=1), attacks=["closed_form"])
    result = auditor.audit(([files[0], tmp_path / "bad.png", files[1]], [1, 2, 3]))
    assert [s.name for s in result.record.skipped_inputs] == ["bad.png"]
    assert [s.name for s in result.record.samples] == ["a.png", "b ü.png"]
    assert [s.label for s in result.record.samples] == [1, 3]


def test_sizes_must_agree() -> None:
    refused([torch.zeros(3, 12, 12), torch.zeros(3, 12, 13)], "image 1: expected shape")


@pytest.mark.parametrize(
    ("sample", "match"),
    [
        (7, "expected a tensor, PIL images, paths"),
        (np.zeros((1, 3, 8, 8)), "torch.from_numpy"),
        ([], "an empty list"),
        ([7], "a tensor, a PIL image or a path"),
        (torch.zeros(3, 8, 8), "expected shape"),
        (torch.zeros(0, 3, 8, 8), "at least one image"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.int32), "float in .* or uint8"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.bool), "float in .* or uint8"),
        ([torch.zeros(1, 3, 8, 8)], "one tensor per image"),
        ({}, "one image entry"),
        ({"a": IMAGES, "b": IMAGES}, "Leave out the entries"),
    ],
    ids=lambda v: type(v).__name__ if not isinstance(v, str) else v[:12],
)
def test_what_is_no_sample(sample: Any, match: str) -> None:
    with pytest.raises(PrivauditError, match=match):
        read(sample)


def test_nan_is_named_by_the_number_of_its_image() -> None:
    bad = torch.zeros(3, 12, 12)
    bad[0, 0, 0] = float("nan")
    refused([IMAGES[0], IMAGES[1], bad], "image 2: expected finite")
    refused(torch.stack([IMAGES[0], bad, bad]), r"image 1: .*also in 1 more")


# labels


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(432, 16), nn.GELU(), nn.Linear(16, 10))


def labels_of(labels: Any) -> list[int | None]:
    auditor = Auditor(
        perceptron(), client=Client(batch_size=1), attacks=["closed_form"]
    )
    return [s.label for s in auditor.audit((IMAGES, labels)).record.samples]


@pytest.mark.parametrize(
    "labels",
    [
        torch.tensor([1, 2]), torch.tensor([1, 2], dtype=torch.int32),
        torch.tensor([[1], [2]]), torch.tensor([1, 2], dtype=torch.uint8), [1, 2],
        (1, 2), np.array([1, 2]),
    ],
    ids=["int64", "int32", "column", "uint8", "list", "tuple", "numpy"],
)  # fmt: skip
def test_labels_of_many_kinds(labels: Any) -> None:
    assert labels_of(labels) == [1, 2]


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        ([3, 10], r"label at index 1: expected a class id from 0 to 9 .*got 10"),
        ([-1, 2], "label at index 0: .*got -1"),
        ([-100, -100], "all -100"),
        ([1], "expected 2, one per image, got 1"),
        ([1, 2, 3], "expected 2, one per image, got 3"),
        ([1.0, 2.0], r"float32 of shape \(2,\). Class ids: labels.long\(\)"),
        (torch.eye(10)[[1, 2]].long(), "one-hot: labels.argmax"),
        (torch.rand(2, 9), r"probabilities of shape \(images, 10\)"),
        ([[1, 2], [3, 4]], r"integer class ids of shape \(images\)"),
        (["cat", "dog"], "Map names to class ids"),
        ([1, None], "Map names to class ids"),
    ],
)
def test_labels_that_cannot_be(labels: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        labels_of(labels)


def test_labels_left_out_are_the_models_own_and_said() -> None:
    auditor = Auditor(
        perceptron(), client=Client(batch_size=1), attacks=["closed_form"]
    )
    result = auditor.audit(IMAGES)
    assert {s.label_source for s in result.record.samples} == {"model's own argmax"}
    assert "labels-from-model" in {f.code for f in result.record.inventory.findings}


# what a model says of its input


def test_channels_of_the_first_convolution() -> None:
    assert expected_channels(nn.Sequential(nn.Conv2d(5, 4, 3))) == 5
    assert expected_channels(perceptron()) is None
    normed = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3))
    assert expected_channels(normed) == 3


class HeadFirst(nn.Module):
    """Declares its last convolution before its first."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(32, 10, 1)
        self.stem = nn.Conv2d(3, 32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stem(x)).mean((2, 3))  # type: ignore[no-any-return]


def test_the_order_of_declaration_is_not_the_order_of_calls() -> None:
    result = Auditor(HeadFirst(), attacks=["closed_form"]).audit((IMAGES[:1], [1]))
    assert result.record.inventory.input_shape == [3, 12, 12]
