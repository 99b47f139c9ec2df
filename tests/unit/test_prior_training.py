"""Embedded priors: what comes with the package, and how one is trained."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from privaudit._prior_images import stack
from privaudit.errors import ConfigError
from privaudit.priors.diffusion import (
    DIFFUSION_PRIORS,
    Natural,
    Trained,
    found,
    loaded,
)
from privaudit.priors.diffusion import file as prior_file
from privaudit.priors.diffusion._training import PriorTrainer, PriorTraining
from privaudit.priors.diffusion.schedule import add_noise, cosine_alphas, split
from privaudit.priors.diffusion.unet import UNet
from tests.unit.command import Command

CPU = torch.device("cpu")
SMALL = PriorTraining(
    size=16, widths=(8, 16), time_width=32, batch_size=16, steps=80,
    learning_rate=3e-3, warm_up=5,
)  # fmt: skip
WORDS = {
    "name": "squares", "learnt_from": "squares", "good_for": "squares",
    "not_for": "all else", "licence": "",
}  # fmt: skip


def squares(count: int, side: int = 16, channels: int = 1) -> Tensor:
    """A bright square somewhere on black, uint8."""
    generator = torch.Generator().manual_seed(0)
    images = torch.zeros(count, channels, side, side, dtype=torch.uint8)
    for image in images:
        top, left = torch.randint(side // 2, (2,), generator=generator).tolist()
        image[:, top : top + side // 2, left : left + side // 2] = 255
    return images


def trainer(pictures: list[Tensor], settings: PriorTraining = SMALL) -> PriorTrainer:
    return PriorTrainer(pictures, settings, torch.Generator().manual_seed(0), CPU)


@pytest.fixture(scope="module")
def trained() -> PriorTrainer:
    made = trainer([squares(300)])
    made.run()
    return made


# what comes with the package


@pytest.mark.parametrize("name", ["digits", "natural"])
def test_what_comes_with_the_package_denoises(name: str) -> None:
    """Noise of half the variance is taken away far better than by shrinking it."""
    card = prior_file.load(found(name))[1].card
    assert card.name == name
    assert card.parameters > 1e6
    assert card.seconds is not None
    assert card.seconds > 600
    prior = loaded(name, DIFFUSION_PRIORS, CPU)
    if name == "digits":
        clean = torch.from_numpy(_digit())[None, None] * 2 - 1
    else:
        from privaudit._controls import shipped_images

        clean = shipped_images(1, (3, 64, 64)) * 2 - 1
    step = 300
    alpha = float(cosine_alphas()[step])
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    noisy = add_noise(clean, alpha, noise)
    with torch.no_grad():
        output = prior.predict(noisy, torch.tensor([step]))
    guess = split(noisy, output, alpha, prior.prediction)[0].clamp(-1, 1)
    shrunk = noisy * alpha**0.5
    error = float((guess - clean).square().mean())
    assert error < 0.35 * float((shrunk - clean).square().mean())


def _digit() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """A seven, drawn by hand."""
    image = np.zeros((28, 28), np.float32)
    image[6:9, 7:21] = 1
    for row in range(9, 23):
        column = 19 - (row - 9) // 2
        image[row, column - 1 : column + 2] = 1
    return image


def test_the_priors_fit_into_twenty_megabytes() -> None:
    sizes = [found(name).stat().st_size for name in ("digits", "natural")]
    assert sum(sizes) < 20e6


def test_images_that_a_prior_cannot_draw_are_refused() -> None:
    prior = loaded("digits", DIFFUSION_PRIORS, CPU)
    assert prior.latent_shape((1, 28, 28)) == (1, 28, 28)
    for shape in ((3, 28, 28), (1, 4, 28)):
        with pytest.raises(ConfigError, match=r"prior 'digits'.*expected images of 1"):
            prior.latent_shape(shape)


def test_large_images_are_drawn_at_the_scale_that_was_learnt() -> None:
    prior = loaded("natural", DIFFUSION_PRIORS, CPU)
    for side, drawn in ((32, 32), (64, 64), (96, 96), (128, 64), (224, 112), (256, 64)):
        assert prior.latent_shape((3, side, side)) == (3, drawn, drawn)
    assert prior.encode(torch.zeros(2, 3, 128, 128)).shape == (2, 3, 64, 64)
    assert prior.encode(torch.zeros(2, 3, 48, 48)).shape == (2, 3, 48, 48)
    whole = Natural(whole=True).load(CPU)
    assert whole.latent_shape((3, 256, 256)) == (3, 256, 256)
    assert whole.encode(torch.zeros(1, 3, 128, 128)).shape == (1, 3, 128, 128)


# the network


@pytest.mark.parametrize("side", [(16, 16), (28, 28), (30, 17)])
def test_any_size_goes_in_and_comes_out(side: tuple[int, int]) -> None:
    network = UNet(3, (8, 16, 24), 32)
    images = torch.randn(2, 3, *side)
    assert network(images, torch.tensor([0, 999])).shape == images.shape


def test_images_of_a_batch_do_not_meet() -> None:
    network = UNet(1, (8, 16), 32).eval()
    images, step = torch.randn(3, 1, 16, 16), torch.tensor([3, 500, 900])
    with torch.no_grad():
        together = network(images, step)
        alone = torch.cat(
            [network(images[i : i + 1], step[i : i + 1]) for i in (0, 1, 2)]
        )
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)


def test_it_still_casts_to_half() -> None:
    """An attribute of a module must not hide a method of torch's."""
    network = UNet(1, (8, 16), 32).to(torch.float64)
    assert next(network.half().parameters()).dtype == torch.float16


# training


def test_the_loss_falls(trained: PriorTrainer) -> None:
    fresh = trainer([squares(300)])
    assert trained.error()[0] < 0.85 * fresh.error()[0]
    assert sum(trained.losses[-10:]) < 0.8 * sum(trained.losses[:10])
    assert trained.done == SMALL.steps


def test_training_comes_out_the_same_again(trained: PriorTrainer) -> None:
    again = trainer([squares(300)])
    again.run()
    assert again.losses == trained.losses


def test_held_out_images_are_not_learnt_from(trained: PriorTrainer) -> None:
    images = squares(300)
    assert torch.equal(trained.learnt[0], images[64:])
    held = ((trained.held_out() + 1) / 2 * 255).round().to(torch.uint8)
    assert torch.equal(held, images[:64])


def test_a_file_gives_the_network_back(trained: PriorTrainer, tmp_path: Path) -> None:
    place = prior_file.save(tmp_path / "p.safetensors", trained.averaged,
                            trained.facts(WORDS))  # fmt: skip
    network, facts = prior_file.load(place)
    assert facts.card.name == "squares"
    assert facts.card.images == 236
    assert facts.card.loss == pytest.approx(trained.error()[0], abs=1e-4)
    images, step = torch.randn(2, 1, 16, 16), torch.tensor([10, 700])
    with torch.no_grad():
        apart = network(images, step) - trained.averaged(images, step)
    assert float(apart.abs().max()) < 2e-2
    assert not any(p.requires_grad for p in network.parameters())
    prior = loaded(place, DIFFUSION_PRIORS, CPU)
    assert prior.card == facts.card
    assert loaded(Trained(path=place), DIFFUSION_PRIORS, CPU).card == facts.card


def test_no_time_still_keeps_a_file(tmp_path: Path) -> None:
    kept = []
    made = PriorTrainer(
        [squares(20)], SMALL, torch.Generator(), CPU, keep=lambda t: kept.append(t.done)
    )
    made.run(1e-6)
    assert kept == [made.done]


@pytest.mark.parametrize("pictures", [[], [torch.zeros(2, 1, 16, 16)]])
def test_what_is_no_stack_of_images_is_refused(pictures: list[Tensor]) -> None:
    with pytest.raises(ConfigError, match="expected stacks of images"):
        trainer(pictures)


def test_stacks_of_other_channels_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"got 2 stack\(s\), channels \[1, 3\]"):
        trainer([squares(4), squares(4, channels=3)])


# files


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "p.safetensors"
    with pytest.raises(ConfigError, match="expected the file of a prior"):
        prior_file.load(place)
    save_file({"x": torch.zeros(1)}, place)
    with pytest.raises(ConfigError, match="something else"):
        prior_file.load(place)
    place.write_bytes(b"rubbish" * 100)
    with pytest.raises(ConfigError, match="expected the file of a prior"):
        prior_file.load(place)


def test_a_file_with_other_weights_is_refused(
    trained: PriorTrainer, tmp_path: Path
) -> None:
    place = prior_file.save(tmp_path / "p.safetensors", trained.averaged,
                            trained.facts(WORDS))  # fmt: skip
    tensors = load_file(place)
    tensors.pop("enter.weight")
    facts = trained.facts(WORDS).model_dump_json()
    save_file(tensors, place, metadata={prior_file.KEY: facts})
    with pytest.raises(ConfigError, match="expected the weights that its card"):
        prior_file.load(place)


def test_an_unknown_prior_is_named() -> None:
    with pytest.raises(ConfigError, match="digits, natural, or a file, got 'digit'"):
        found("digit")
    with pytest.raises(ConfigError, match=r"priors\['diffusion'\].*got int"):
        loaded(3, DIFFUSION_PRIORS, CPU)


# images to learn from


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    folder = tmp_path / "photos" / "train"
    folder.mkdir(parents=True)
    for number, size in enumerate([(60, 40), (40, 60), (50, 50)]):
        Image.new("RGB", size, (10 * number, 0, 200)).save(folder / f"{number}.png")
    (folder / "notes.txt").write_text("no image")
    return folder.parent


def test_folders_zips_and_arrays_are_read(photographs: Path, tmp_path: Path) -> None:
    found = stack(photographs, mode="RGB", size=12, part="", count=None)
    assert (found.shape, found.dtype) == ((3, 3, 30, 30), torch.uint8)
    assert found[2, :, 0, 0].tolist() == [20, 0, 200]
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as archive:
        for file in photographs.rglob("*.png"):
            archive.write(file, file.relative_to(photographs))
    zipped = stack(tmp_path / "p.zip", mode="RGB", size=12, part="train/", count=None)
    assert torch.equal(zipped, found)
    np.savez(tmp_path / "p.npz", images=np.zeros((4, 9, 9), np.uint8))
    arrays = stack(tmp_path / "p.npz", mode="L", size=8, part="", count=2)
    assert arrays.shape == (2, 1, 9, 9)


def test_small_photographs_keep_their_size(photographs: Path) -> None:
    found = stack(photographs, mode="L", size=64, part="", count=1)
    assert found.shape == (1, 1, 40, 40)


def test_where_there_are_none_it_says_so(photographs: Path, tmp_path: Path) -> None:
    for place, part in ((photographs, "test/"), (tmp_path / "nowhere", "")):
        with pytest.raises(ConfigError, match=r"--images.*no image in"):
            stack(place, mode="RGB", size=12, part=part, count=None)
    np.savez(tmp_path / "p.npz", images=np.zeros((4, 9, 9), np.float32))
    with pytest.raises(ConfigError, match="expected uint8"):
        stack(tmp_path / "p.npz", mode="L", size=8, part="", count=None)
    np.savez(tmp_path / "p.npz", pictures=np.zeros((4, 9, 9), np.uint8))
    with pytest.raises(ConfigError, match="an array `images`"):
        stack(tmp_path / "p.npz", mode="L", size=8, part="", count=None)


def test_a_broken_image_is_named(photographs: Path) -> None:
    (photographs / "train" / "3.png").write_bytes(b"no png")
    with pytest.raises(ConfigError, match=r"train/3\.png: expected an image"):
        stack(photographs, mode="RGB", size=12, part="", count=None)


# the command


def test_the_command_trains_and_shows_the_card(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", images=squares(40)[:, 0].numpy())
    out = tmp_path / "squares.safetensors"
    arguments: list[str | Path] = [
        "prior", "train", "--images", tmp_path / "p.npz", "--image-mode", "L",
        "--name", "squares", "--size", "16", "--widths", "8,16", "--steps", "5",
        "--batch-size", "4", "--out", out, "--learnt-from", "40 squares",
    ]  # fmt: skip
    done = Command(tmp_path)(*arguments)
    assert done.code == 0, done.stderr
    assert done.line == f"privaudit: prior squares | {out} | exit 0"
    again = Command(tmp_path)(*arguments, "--start", out)
    assert again.code == 0, again.stderr
    shown = Command(tmp_path)("prior", "card", out)
    assert '"learnt_from": "40 squares"' in shown.stdout
    assert '"steps": 10' in shown.stdout  # of both runs
    refused = Command(tmp_path)(*arguments[:-4], "--out", tmp_path / "p.pt")
    assert refused.code == 2
