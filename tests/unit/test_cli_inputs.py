"""Inputs that are no RGB pictures, from files to result.json on the command line.

The pixels are shipped photographs, so that unrelated ones are those of a real audit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from privaudit._controls import shipped_images
from privaudit._loading import load_images
from privaudit.cli import app
from privaudit.errors import MissingDependencyError
from privaudit.result import AuditResult
from tests.unit.command import ROOT, Command, Done

MODELS = Path(__file__).with_name("cli_input_models.py")
SIDE, COUNT, TWELVE_BITS = 32, 2, 4095


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "model.py").write_bytes(MODELS.read_bytes())
    return Command(folder)


def scenes(channels: int, side: int = SIDE) -> NDArray[Any]:
    """12-bit images, (images, channels, height, width); no two channels are alike."""
    photographs = shipped_images(64, (3, side, side)).flatten(0, 1).numpy()
    chosen = photographs[: COUNT * channels].reshape(COUNT, channels, side, side)
    return (chosen * TWELVE_BITS).round().astype(np.uint16)


def each(save: Callable[[Path, NDArray[Any]], object], suffix: str) -> Any:
    """Writes one file an image."""

    def write(folder: Path, images: NDArray[Any]) -> str:
        folder.mkdir()
        for number, image in enumerate(images):
            save(folder / f"{number}{suffix}", image)
        return folder.name

    return write


def stack(save: Callable[[Path, NDArray[Any]], object], suffix: str) -> Any:
    """Writes all images to one file."""

    def write(folder: Path, images: NDArray[Any]) -> str:
        path = folder.with_suffix(suffix)
        save(path, images)
        return path.name

    return write


def grey(path: Path, image: NDArray[Any]) -> None:
    Image.fromarray(image[0]).save(path)


def tiff(**settings: Any) -> Callable[[Path, NDArray[Any]], None]:
    def save(path: Path, image: NDArray[Any]) -> None:
        tifffile = pytest.importorskip("tifffile", reason="reads TIFFs of many bands")
        data = image
        if settings.get("planarconfig") == "contig":
            data = image.transpose(1, 2, 0)
        tifffile.imwrite(path, data, photometric="minisblack", **settings)

    return save


def torch_file(path: Path, image: NDArray[Any]) -> None:
    torch.save(torch.from_numpy(image.astype(np.int32)), path)


def zipped(path: Path, image: NDArray[Any]) -> None:
    np.savez(path, images=image)


def scaled(path: Path, image: NDArray[Any]) -> None:
    np.save(path, image.astype(np.float32) / TWELVE_BITS)


def last(path: Path, image: NDArray[Any]) -> None:
    np.save(path, np.moveaxis(image, -3, -1))


RANGE = ("--range", "0", str(TWELVE_BITS))
KINDS = {
    "16-bit PNG": ("one", 1, each(grey, ".png"), RANGE),
    "16-bit TIFF": ("one", 1, each(grey, ".tif"), RANGE),
    "grey .npy": ("one", 1, each(lambda p, i: np.save(p, i[0]), ".npy"), RANGE),
    "2 bands, TIFF": ("two", 2, each(tiff(planarconfig="contig"), ".tif"), RANGE),
    "4 bands, TIFF": ("four", 4, each(tiff(planarconfig="contig"), ".tif"), RANGE),
    "13 bands, TIFF": (
        "thirteen", 13, each(tiff(planarconfig="contig"), ".tif"), RANGE),
    "13 planes, TIFF": (
        "thirteen", 13, each(tiff(planarconfig="separate"), ".TIFF"), RANGE),
    "13 pages, TIFF": ("thirteen", 13, each(tiff(), ".tif"), RANGE),
    "deflated TIFF": ("thirteen", 13, each(tiff(planarconfig="contig",
                      compression="deflate"), ".tif"), RANGE),
    "13 bands, .npy": ("thirteen", 13, each(np.save, ".npy"), RANGE),
    "a stack, .npy": ("thirteen", 13, stack(np.save, ".npy"), RANGE),
    "a stack, .npz": ("thirteen", 13, stack(zipped, ".npz"), RANGE),
    "a stack, .pt": ("thirteen", 13, stack(torch_file, ".pt"), RANGE),
    "floats in [0, 1]": ("thirteen", 13, stack(scaled, ".npy"), ()),
    "channels last": ("thirteen", 13, stack(last, ".npy"), (*RANGE, "--channels-last")),
    "one by one, last": ("four", 4, each(last, ".npy"), (*RANGE, "--channels-last")),
    "mean and std": ("thirteen", 13, stack(np.save, ".npy"), (
        *RANGE, "--mean", ",".join(["0.3"] * 13), "--std", ",".join(["0.2"] * 13))),
    "one mean for all": ("four", 4, stack(np.save, ".npy"), (
        *RANGE, "--mean", "0.4", "--std", "0.25")),
}  # fmt: skip


def run(command: Command, model: str, images: str, *more: str, out: str) -> Done:
    return command(
        "audit", "--model", f"model.py:{model}", "--images", images,
        "--batch-size", "1", *more, "--out", out,
    )  # fmt: skip


def result_of(folder: Path) -> dict[str, Any]:
    data = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data


def place(name: str) -> str:
    """A name for files that says which case they belong to."""
    return "".join(c if c.isalnum() else "-" for c in name)


@pytest.mark.parametrize("kind", KINDS)
def test_from_the_files_to_the_verdict(command: Command, kind: str) -> None:
    model, channels, write, options = KINDS[kind]
    images = write(command.folder / place(kind), scenes(channels))
    out = f"out-{place(kind)}"
    done = run(command, model, images, *options, out=out)
    assert done.verdict == ("leaks", 1), done.stderr
    assert done.code == 1
    assert "Warning" not in done.stderr
    record = result_of(command.folder / out)
    assert record["verdict"]["word"] == "leaks"
    assert record["verdict"]["worst"]["ssim"]["value"] > 0.999
    assert record["inventory"]["input_shape"] == [channels, SIDE, SIDE]
    names = [s["name"] for s in record["samples"]]
    stacked = (command.folder / images).is_file()
    assert len(names) == COUNT
    assert [n.endswith(f"[{i}]") for i, n in enumerate(names)] == [stacked] * COUNT
    ssim = record["attacks"][0]["evidence"]["scores"]["ssim"]
    assert all(score["value"] > 0.999 for score in ssim)
    if "--range" in options:
        assert record["config"]["value_range"] == [0, TWELVE_BITS]
        notes = [f["text"] for f in record["inventory"]["findings"]]
        assert any("0 to 4095 were mapped to [0, 1]" in text for text in notes)


@pytest.mark.parametrize("kind", ["16-bit PNG", "13 bands, TIFF", "a stack, .npy"])
def test_every_channel_comes_back(
    kind: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, where the reconstruction can be had before it is rounded."""
    model, channels, write, options = KINDS[kind]
    images = tmp_path / write(tmp_path / "images", scenes(channels))
    kept: list[AuditResult] = []
    save = AuditResult.save

    def keeping(result: AuditResult, path: Path, **more: Any) -> Path:
        kept.append(result)
        return save(result, path, **more)

    monkeypatch.setattr(AuditResult, "save", keeping)
    arguments = [
        "audit", "--model", f"{command.folder / 'model.py'}:{model}", "--images",
        str(images), "--batch-size", "1", *options, "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    try:
        assert app(args=arguments, standalone_mode=False) == 1
    finally:
        sys.modules.pop("model", None)
    found = kept[0].attacks["closed_form"].reconstructions
    truth = torch.from_numpy(scenes(channels).astype(np.float32) / TWELVE_BITS)
    assert found.shape == (COUNT, channels, SIDE, SIDE)
    assert torch.allclose(found, truth, atol=1e-3)


REFUSED = {
    "no range, PNG": (each(grey, ".png"), "one", 1, (), "--range LOW HIGH"),
    "no range, TIFF": (each(grey, ".tif"), "one", 1, (), "int32 values from"),
    "no range, array": (stack(np.save, ".npy"), "four", 4, (), "It is not guessed"),
    "floats beyond 1": (
        stack(lambda p, i: np.save(p, i.astype(np.float32)), ".npy"), "four", 4, (),
        "--range LOW HIGH"),
    "too small a range": (
        each(grey, ".png"), "one", 1, ("--range", "0", "1000"), "range 1000 but"),
    "too large a range": (
        each(grey, ".png"), "one", 1, ("--range", "0", "65536"), "below 1/16 of it"),
    "a range upside down": (
        each(grey, ".png"), "one", 1, ("--range", "9", "0"), "low < high"),
    "a range of words": (
        each(grey, ".png"), "one", 1, ("--range", "dark", "light"), "--range"),
    "half a range": (each(grey, ".png"), "one", 1, ("--range", "9"), "--range"),
    "more than 8 bits hold": (
        stack(lambda p, i: np.save(p, (i // 16).astype(np.uint8)), ".npy"), "four", 4,
        RANGE, "uint8, which holds 0 to 255"),
    "other channels": (
        stack(np.save, ".npy"), "thirteen", 4, RANGE, "RGBA (4 channels)"),
    "channels last": (
        stack(last, ".npy"), "thirteen", 13, RANGE, "--channels-last"),
    "channels last, unstated": (
        stack(last, ".npy"), "linear", 13, RANGE, "--channels-last"),
    "mean of three": (
        stack(np.save, ".npy"), "thirteen", 13,
        (*RANGE, "--mean", ".1,.2,.3", "--std", "1,1,1"), "1 or 13 values"),
    "image mode of numbers": (
        each(grey, ".png"), "one", 1, (*RANGE, "--image-mode", "L"), "cut values off"),
    "bands that are not there": (
        stack(np.save, ".npy"), "four", 4, (*RANGE, "--show-bands", "4,5,6"),
        "numbers from 1 to 4"),
    "two bands": (
        stack(np.save, ".npy"), "four", 4, (*RANGE, "--show-bands", "1,2"),
        "one or three"),
    "bands, words": (
        stack(np.save, ".npy"), "four", 4, (*RANGE, "--show-bands", "red"),
        "--show-bands"),
    "several arrays": (
        stack(lambda p, i: np.savez(p, images=i, labels=i), ".npz"), "four", 4, RANGE,
        "2: images, labels"),
    "truth values": (
        stack(lambda p, i: np.save(p, i > 0), ".npy"), "four", 4, RANGE, "bool"),
    "five axes": (
        stack(lambda p, i: np.save(p, i[None]), ".npy"), "four", 4, RANGE,
        "shape (1, 2, 4, 32, 32)"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_before_any_attack(
    command: Command, name: str
) -> None:
    write, model, channels, options, text = REFUSED[name]
    images = write(command.folder / f"refused-{place(name)}", scenes(channels))
    done = run(command, model, images, *options, out="refused")
    assert done.verdict == ("error", 2), done.stderr
    assert text in done.line
    assert "Traceback" not in done.stderr
    assert not (command.folder / "refused").exists()


def test_sixteen_bits_a_colour_are_not_read_as_eight(command: Command) -> None:
    """Pillow would; the colours are written by hand, since it cannot write them."""
    (command.folder / "deep").mkdir()
    (command.folder / "deep" / "0.png").write_bytes(_png_of_16_bit_colour())
    done = run(command, "linear", "deep", out="refused")
    assert done.verdict == ("error", 2), done.stderr
    assert "16 bits" in done.line
    assert "save it as TIFF or .npy" in done.line


def _png_of_16_bit_colour() -> bytes:
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", SIDE, SIDE, 16, 2, 0, 0, 0)
    rows = b"".join(b"\0" + bytes(6 * SIDE) for _ in range(SIDE))
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


def test_without_tifffile_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = tmp_path / KINDS["13 bands, TIFF"][2](tmp_path / "no", scenes(13))
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(MissingDependencyError, match=r"privaudit\[tiff\]"):
        load_images([images])


def test_a_damaged_array_is_listed_and_the_rest_is_audited(command: Command) -> None:
    folder = command.folder / "damaged"
    each(np.save, ".npy")(folder, scenes(4))
    whole = (folder / "0.npy").read_bytes()
    (folder / "cut.npy").write_bytes(whole[: len(whole) // 2])
    (folder / "page.pt").write_text("<html>")
    (folder / "code.npy").write_bytes(b"\x80\x04N.")
    done = run(command, "four", "damaged", *RANGE, out="out-damaged")
    assert done.verdict == ("leaks", 1), done.stderr
    record = result_of(command.folder / "out-damaged")
    listed = [s["name"] for s in record["skipped_inputs"]]
    assert listed == ["code.npy", "cut.npy", "page.pt"]
    assert len(record["samples"]) == COUNT


def test_deep_images_are_resized_without_losing_depth(command: Command) -> None:
    folder = command.folder / "large"
    each(np.save, ".npy")(folder, scenes(4, side=48))
    done = run(command, "four", "large", *RANGE, "--size", "32", out="out-large")
    assert done.verdict == ("leaks", 1), done.stderr
    record = result_of(command.folder / "out-large")
    assert record["inventory"]["input_shape"] == [4, SIDE, SIDE]
    grey_folder = command.folder / "large-grey"
    each(grey, ".png")(grey_folder, scenes(1, side=48))
    done = run(command, "one", "large-grey", *RANGE, "--size", "32", out="out-large")
    assert done.verdict == ("leaks", 1), done.stderr


# what pictures show


def page_of(command: Command, out: str) -> str:
    return (command.folder / out / "report.html").read_text(encoding="utf-8")


def test_the_report_says_which_bands_it_shows(command: Command) -> None:
    images = stack(np.save, ".npy")(command.folder / "bands", scenes(13))
    done = run(command, "thirteen", images, *RANGE, out="bands")
    assert done.verdict == ("leaks", 1), done.stderr
    page = page_of(command, "bands")
    assert "These images have 13 bands. Pictures show bands 1, 2, 3 of 13 as" in page
    assert "Original · bands 1, 2, 3 of 13" in page
    first = (command.folder / "bands/images/original-0000.png").read_bytes()
    done = run(
        command, "thirteen", images, *RANGE, "--show-bands", "4,3,2", out="bands2"
    )
    assert done.verdict == ("leaks", 1), done.stderr
    assert "Pictures show bands 4, 3, 2 of 13" in page_of(command, "bands2")
    seen = command.folder / "bands2/images/original-0000.png"
    assert seen.read_bytes() != first
    with Image.open(seen) as picture:
        red = np.array(picture)[..., 0].astype(float)
    truth = scenes(13)[0, 3] / TWELVE_BITS * 255
    assert float(abs(red - truth).max()) <= 0.51


def test_grey_is_shown_grey_and_says_nothing_of_bands(command: Command) -> None:
    images = each(grey, ".png")(command.folder / "shown", scenes(1))
    done = run(command, "one", images, *RANGE, out="shown-out")
    assert done.verdict == ("leaks", 1), done.stderr
    assert "Pictures show band" not in page_of(command, "shown-out")
    with Image.open(command.folder / "shown-out/images/original-0000.png") as seen:
        red, green, blue = np.array(seen.convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(red, green)
    assert np.array_equal(red, blue)


# masks


SEGMENTS = ("--training-step", "model.py:step", *RANGE)


def masks(images: NDArray[Any]) -> NDArray[Any]:
    """Three classes by brightness, and a border that is not counted."""
    found: NDArray[Any] = np.digitize(images[:, 0], (1400, 2700)).astype(np.uint8)
    found[:, 0] = 255
    return found


@pytest.fixture(scope="module")
def scans(command: Command) -> Command:
    """Images, and masks in every form."""
    images = scenes(1)
    each(grey, ".png")(command.folder / "scans", images)
    targets = masks(images)
    each(grey, ".png")(command.folder / "masks", targets[:, None])
    each(np.save, ".npy")(command.folder / "masks-npy", targets)
    np.save(command.folder / "masks.npy", targets)
    torch.save(torch.from_numpy(targets), command.folder / "masks.pt")
    (command.folder / "palette").mkdir()
    for number, mask in enumerate(targets):
        picture = Image.fromarray(mask).convert("P")
        picture.putpalette([7, 7, 7] * 256)
        picture.save(command.folder / "palette" / f"{number}.png")
    return command


def test_every_form_of_the_masks_makes_the_same_step(scans: Command) -> None:
    outcomes = []
    for form in ("masks", "masks-npy", "masks.npy", "masks.pt", "palette"):
        out = f"out-{place(form)}"
        done = run(scans, "segments", "scans", *SEGMENTS, "--labels", form, out=out)
        assert done.verdict == ("leaks", 1), done.stderr
        record = result_of(scans.folder / out)
        assert record["verdict"]["worst"]["ssim"]["value"] > 0.999
        assert record["config"]["training_step"] == "step"
        assert {s["label_source"] for s in record["samples"]} == {"given"}
        outcomes.append(record["attacks"][0]["outcomes"])
    assert all(found == outcomes[0] for found in outcomes)


def test_masks_are_resized_with_their_images(scans: Command) -> None:
    images = scenes(1, side=48)
    each(grey, ".png")(scans.folder / "scans48", images)
    each(grey, ".png")(scans.folder / "masks48", masks(images)[:, None])
    done = run(
        scans, "segments", "scans48", *SEGMENTS, "--labels", "masks48", "--size", "32",
        out="out48",
    )  # fmt: skip
    assert done.verdict == ("leaks", 1), done.stderr


def test_masks_with_the_usual_loss(scans: Command) -> None:
    """Without a training step, cross-entropy per pixel, which has no class 255."""
    np.save(scans.folder / "plain.npy", masks(scenes(1)).clip(0, 2))
    arguments = ("scans", *RANGE, "--labels")
    done = run(scans, "segments", *arguments, "plain.npy", out="out-plain")
    assert done.verdict == ("leaks", 1), done.stderr
    done = run(scans, "segments", *arguments, "masks.npy", out="refused")
    assert done.verdict == ("error", 2)
    assert "a class id from 0 to 2" in done.line


REFUSED_STEPS = {
    "no function": (("--training-step", "model.py:none"), "--training-step"),
    "no place": (("--training-step", "step"), "package.module:function"),
    "a number": (("--training-step", "model.py:not_a_function"), "got int"),
    "a missing file": (("--training-step", "no.py:step"), "no file no.py"),
    "no arguments": (("--training-step", "model.py:no_step"), "no_step"),
    "two modes": ((*SEGMENTS[:2], "--mode", "train"), "--mode"),
    "no masks": ((*SEGMENTS[:2], "--labels", "nowhere"), "--labels"),
    "one mask too few": ((*SEGMENTS[:2], "--labels", "one"), "a mask 1.png"),
    "two masks": ((*SEGMENTS[:2], "--labels", "twice"), "one mask"),
    "colours": ((*SEGMENTS[:2], "--labels", "colours"), "one channel"),
    "no picture": ((*SEGMENTS[:2], "--labels", "broken"), "a readable mask"),
    "other sizes": ((*SEGMENTS[:2], "--labels", "uneven"), "as the first"),
}  # fmt: skip


@pytest.fixture(scope="module")
def bad_masks(scans: Command) -> Command:
    target = masks(scenes(1))[:, None]
    each(grey, ".png")(scans.folder / "one", target[:1])
    each(grey, ".png")(scans.folder / "twice", target)
    grey(scans.folder / "twice" / "0.tif", target[0])
    (scans.folder / "colours").mkdir()
    (scans.folder / "broken").mkdir()
    each(grey, ".png")(scans.folder / "uneven", target)
    grey(scans.folder / "uneven" / "1.png", target[1, :, :8])
    for number in range(COUNT):
        colour = Image.fromarray(target[number, 0]).convert("RGB")
        colour.save(scans.folder / "colours" / f"{number}.png")
        (scans.folder / "broken" / f"{number}.png").write_text("<html>")
    return scans


@pytest.mark.parametrize("name", REFUSED_STEPS)
def test_what_is_no_step_and_no_mask(bad_masks: Command, name: str) -> None:
    options, text = REFUSED_STEPS[name]
    done = run(bad_masks, "segments", "scans", *RANGE, *options, out="refused")
    assert done.verdict == ("error", 2), done.stderr
    assert text in done.line


def test_inspect_takes_the_same_inputs(scans: Command) -> None:
    done = scans(
        "inspect", "--model", "model.py:segments", "--images", "scans", *RANGE,
        "--json",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["input_shape"] == [1, SIDE, SIDE]


def test_the_example_on_the_command_line(scans: Command) -> None:
    np.save(scans.folder / "two-classes.npy", masks(scenes(1)).clip(0, 1))
    example = ROOT / "examples" / "segmentation.py"
    done = scans(
        "audit", "--model", f"{example}:build", "--training-step",
        f"{example}:training_step", "--images", "scans", "--labels", "two-classes.npy",
        *RANGE, "--batch-size", "1", "--out", "out-example",
    )  # fmt: skip
    assert done.verdict == ("leaks", 1), done.stderr
    record = result_of(scans.folder / "out-example")
    assert record["config"]["training_step"] == "training_step"
    assert record["inventory"]["input_shape"] == [1, 32, 32]


# small images, the mode, and the place of the result


@pytest.mark.parametrize("form", ["PNG", "array", "grey"])
def test_images_of_8_pixels(command: Command, form: str) -> None:
    name, channels = f"small-{form}", 1 if form == "grey" else 3
    images = scenes(channels, side=8)
    small = (images // 16).astype(np.uint8)
    if form == "array":
        np.save(command.folder / f"{name}.npy", small)
    else:
        (command.folder / name).mkdir()
        for number, image in enumerate(small):
            shown = image.transpose(1, 2, 0) if channels == 3 else image[0]
            Image.fromarray(shown).save(command.folder / name / f"{number}.png")
    files = f"{name}.npy" if form == "array" else name
    model = "tiny_grey" if form == "grey" else "tiny"
    done = run(command, model, files, out=f"out-{name}")
    assert done.verdict == ("leaks", 1), done.stderr
    record = result_of(command.folder / f"out-{name}")
    assert record["inventory"]["input_shape"] == [channels, 8, 8]
    (score, _) = record["attacks"][0]["evidence"]["scores"]["ssim"]
    assert score["value"] > 0.999
    assert score["note"] == "window 7 instead of 11"
    assert "window 7 instead of 11" in page_of(command, f"out-{name}")


def test_the_mode_of_the_client(command: Command) -> None:
    np.save(command.folder / "mode.npy", (scenes(3, side=8) // 16).astype(np.uint8))
    done = run(command, "normed", "mode.npy", out="refused")
    assert done.verdict == ("error", 2), done.stderr
    assert "BatchNorm1d" in done.line
    done = run(command, "normed", "mode.npy", "--mode", "as_is", out="out-mode")
    assert done.verdict == ("leaks", 1), done.stderr
    assert result_of(command.folder / "out-mode")["config"]["client"]["mode"] == "as_is"
    done = run(command, "normed", "mode.npy", "--mode", "eval", out="refused")
    assert done.verdict == ("error", 2)


@pytest.mark.parametrize("form", ["{}/out", "{}/out.html", "{}/a/b/out"])
def test_a_place_that_cannot_be_written_is_told_before_the_audit(
    command: Command, form: str
) -> None:
    (command.folder / "a-file").touch()
    closed = ["a-file", "/proc"] if Path("/proc/self").exists() else ["a-file"]
    for parent in closed:
        done = command(
            "audit", "--model", "model.py:no_step", "--images", "nowhere", "--out",
            form.format(parent),
        )  # fmt: skip
        assert done.verdict == ("error", 2), done.stderr
        assert "--out: expected a place that can be written" in done.line


def test_looking_at_the_place_leaves_nothing_there(
    command: Command, tmp_path: Path
) -> None:
    done = run(command, "tiny", "nowhere", out=str(tmp_path / "new" / "out"))
    assert done.verdict == ("error", 2)
    assert "--images" in done.line
    assert list(tmp_path.iterdir()) == []
