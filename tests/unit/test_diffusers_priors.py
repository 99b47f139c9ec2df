"""Priors that somebody else trained: read, and run in lower precision."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from privaudit.attacks.drag import Drag
from privaudit.config import Budget
from privaudit.errors import AttackError
from privaudit.priors.diffusion import (
    Diffusers,
    DiffusionModel,
)
from privaudit.priors.diffusion._half import in_precision
from privaudit.types import Reconstruction
from tests.contract.feature_cases import SHAPE, feature_case
from tests.models.pipelines import change, pixel_pipeline, scale

diffusers = pytest.importorskip("diffusers")
pytest.importorskip("transformers")
CPU = torch.device("cpu")
SHORT: dict[str, Any] = {"steps": 4, "rounds": 1}
UNET = "unet/diffusion_pytorch_model.safetensors"
VAE = "vae/diffusion_pytorch_model.safetensors"
pytestmark = pytest.mark.usefixtures("connections")


def copy(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to / "copy"))


def load(folder: Path | str, **settings: Any) -> DiffusionModel:
    return Diffusers(source=str(folder), **settings).load(CPU)


def guided(prior: Diffusers, count: int = 1) -> list[Reconstruction]:
    """A short search with a prior that was handed over."""
    case = feature_case("nchw", count)
    target = replace(case.target, priors={"diffusion": prior})
    return Drag(**SHORT).run(
        target, case.observation, budget=Budget(), generator=torch.Generator()
    )


def noise(shape: tuple[int, ...], count: int = 2) -> Tensor:
    return torch.randn((count, *shape), generator=torch.Generator().manual_seed(0))


# What is read


@pytest.mark.parametrize("kind", ["tokens", "nchw", "vector"])
@pytest.mark.parametrize("which", ["latent_prior", "pixel_prior"])
def test_guided_diffusion_runs_on_it_to_the_end(
    which: str, kind: str, request: pytest.FixtureRequest, connections: list[Any]
) -> None:
    folder = request.getfixturevalue(which)
    case = feature_case(kind)
    found = case.attack(Drag(prior=str(folder), **SHORT))
    assert len(found) == 2
    for one in found:
        assert one.state == "plateau", one.reason
        assert one.images is not None
        assert one.images.shape == (1, *SHAPE)
        assert one.search is not None
        assert one.search.iterations == 4
        assert one.search.loss_final < one.search.loss_start
        assert one.prior is not None
        assert one.prior.name == str(folder)
        assert one.notes[0].startswith(f"prior {folder}: learnt from not known")
    assert connections == []


def test_the_empty_prompt_and_the_unet_as_diffusers_runs_them(
    latent_prior: Path,
) -> None:
    theirs = diffusers.StableDiffusionPipeline.from_pretrained(latent_prior)
    words = theirs.tokenizer("", padding="max_length", max_length=8,
                             return_tensors="pt")  # fmt: skip
    z, step = noise((4, 8, 8)), torch.tensor([7, 500])
    with torch.no_grad():
        prompt = theirs.text_encoder(words.input_ids)[0]
        wanted = theirs.unet(z, step, prompt.expand(2, -1, -1)).sample
        torch.testing.assert_close(load(latent_prior).predict(z, step), wanted)


def test_latents_are_scaled_and_shifted_both_ways(latent_prior: Path) -> None:
    vae = diffusers.AutoencoderKL.from_pretrained(latent_prior / "vae")
    prior, z, images = (
        load(latent_prior),
        noise((4, 8, 8)),
        noise((3, 16, 16)).clamp(-1, 1),
    )
    own = vae.config
    assert own.shift_factor == 0.1
    with torch.no_grad():
        drawn = vae.decode(z / own.scaling_factor + 0.1).sample
        torch.testing.assert_close(prior.decode(z), drawn)
        mean = vae.encode(images).latent_dist.mean
        torch.testing.assert_close(prior.encode(images), (mean - 0.1) * 0.18215)
        assert prior.encode(noise((3, 40, 40))).shape == (2, 4, 8, 8)
    z.requires_grad_()
    (gradient,) = torch.autograd.grad(prior.decode(z).sum(), z)
    assert float(gradient.abs().min()) > 0


def test_the_scheduler_says_the_levels_and_what_is_predicted(
    latent_prior: Path, pixel_prior: Path, tmp_path: Path
) -> None:
    own = diffusers.DDIMScheduler.from_pretrained(latent_prior / "scheduler")
    prior = load(latent_prior)
    assert torch.equal(prior.alphas, own.alphas_cumprod)
    assert prior.prediction == "epsilon"
    assert (prior.clip, load(pixel_prior).clip) == (False, True)
    changed = copy(pixel_prior, tmp_path)
    file = changed / "scheduler" / "scheduler_config.json"
    change(file, prediction_type="v_prediction", rescale_betas_zero_snr=True)
    again = load(changed)
    assert again.prediction == "v_prediction"
    assert float(again.alphas.min()) > 0


def test_the_card_says_no_more_than_is_known(
    latent_prior: Path, pixel_prior: Path
) -> None:
    card = load(latent_prior).card
    assert (card.kind, card.channels, card.size) == ("latent diffusion", 3, (16, 16))
    own = diffusers.UNet2DConditionModel.from_pretrained(latent_prior / "unet")
    assert card.parameters == sum(p.numel() for p in own.parameters())
    assert card.learnt_from == f"not known; see the model card of {latent_prior}"
    card = load(pixel_prior).card
    assert (card.kind, card.size, card.images) == ("pixel diffusion", (8, 8), None)


@pytest.mark.parametrize(
    ("attention", "settings", "drawn"),
    [
        (False, {}, (3, 16, 16)),
        (True, {}, (3, 8, 8)),
        (True, {"resolution": 12}, (3, 12, 12)),
        (False, {"resolution": 12}, (3, 12, 12)),
    ],
)
def test_the_size_that_pixels_are_drawn_at(
    attention: bool, settings: dict[str, Any], drawn: tuple[int, ...], tmp_path: Path
) -> None:
    folder = pixel_pipeline(tmp_path / "p", attention=attention)
    prior = load(folder, **settings)
    assert prior.latent_shape(SHAPE) == drawn
    assert prior.encode(noise(SHAPE)).shape[1:] == drawn
    (one,) = guided(Diffusers(source=str(folder), **settings))
    assert one.images is not None
    assert one.images.shape == (1, *SHAPE)


def test_sides_that_differ_stay_so(latent_prior: Path, pixel_prior: Path) -> None:
    assert load(pixel_prior).latent_shape((3, 17, 20)) == (3, 18, 20)
    assert load(latent_prior).latent_shape((3, 224, 112)) == (4, 8, 4)
    assert load(latent_prior, resolution=32).latent_shape((3, 16, 16)) == (4, 16, 16)


def test_a_variance_that_is_predicted_too_is_left_out(tmp_path: Path) -> None:
    prior = load(pixel_pipeline(tmp_path / "p", out_channels=6))
    assert prior.predict(noise(SHAPE), torch.tensor([1, 2])).shape == (2, *SHAPE)


def test_old_pipelines_without_folders_and_half_precision_alone(
    pixel_prior: Path, latent_prior: Path, tmp_path: Path
) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for file in [pixel_prior / "model_index.json", *pixel_prior.glob("*/*")]:
        shutil.copy(file, flat)
    step = torch.tensor([5, 5])
    same = load(flat).predict(noise(SHAPE), step)
    assert torch.equal(same, load(pixel_prior).predict(noise(SHAPE), step))
    half = copy(latent_prior, tmp_path)
    for part in ("unet", "vae"):
        file = half / part / "diffusion_pytorch_model.safetensors"
        file.rename(file.with_suffix(".fp16.safetensors"))
    assert load(half).card.size == (16, 16)


def test_weights_are_frozen_and_nothing_is_said_or_changed(
    latent_prior: Path, capfd: pytest.CaptureFixture[str], connections: list[Any]
) -> None:
    from huggingface_hub import utils

    names = ("diffusers", "transformers", "huggingface_hub")
    before = [logging.getLogger(n).level for n in names]
    bars = utils.are_progress_bars_disabled()
    drawn = torch.get_rng_state()
    capfd.readouterr()
    prior = load(latent_prior, precision="bfloat16", tiled=True)
    assert capfd.readouterr() == ("", "")
    assert torch.equal(torch.get_rng_state(), drawn)
    assert [logging.getLogger(n).level for n in names] == before
    assert utils.are_progress_bars_disabled() == bars
    assert connections == []
    network: Any = prior.predict
    coder: Any = getattr(prior.decode, "__self__", None)
    for module in (network.network, coder.vae):
        assert not module.training
        assert not any(p.requires_grad for p in module.parameters())
        assert {p.dtype for p in module.parameters()} == {torch.bfloat16}
    assert coder.vae.use_slicing
    assert coder.vae.use_tiling


# Lower precision


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_small_gradients_survive_half_precision(
    latent_prior: Path, precision: str
) -> None:
    found = []
    for name in ("float32", precision):
        prior, z = load(latent_prior, precision=name), noise((4, 8, 8)).requires_grad_()
        drawn = prior.decode(prior.predict(z, torch.tensor([10, 20])))
        assert drawn.dtype == torch.float32
        weights = noise((3, 16, 16)) * torch.tensor([1e-12, 1.0]).view(2, 1, 1, 1)
        found.append(torch.autograd.grad((drawn * weights).sum(), z)[0])
    for wanted, half in zip(*found, strict=True):
        assert float((wanted - half).norm() / wanted.norm()) < 0.1


def test_a_decoder_that_overflows_runs_in_float32(
    latent_prior: Path, tmp_path: Path
) -> None:
    folder = copy(latent_prior, tmp_path)
    scale(folder / VAE, "decoder.conv_out.weight", 1e6)
    z = noise((4, 8, 8))
    prior = load(folder, precision="float16")
    assert prior.notes == []
    for _ in range(2):
        torch.testing.assert_close(
            prior.decode(z), load(folder).decode(z), rtol=0.1, atol=3e3
        )
    (note,) = prior.notes
    assert note.startswith("the decoder of the prior gave no finite values in float16")
    network: Any = prior.predict
    assert next(network.network.parameters()).dtype == torch.float16
    (one,) = guided(Diffusers(source=str(folder), precision="float16"))
    assert one.images is not None
    assert sum("no finite values" in note for note in one.notes) == 1


def test_latents_that_are_not_finite_are_not_the_decoders_fault(
    latent_prior: Path,
) -> None:
    prior = load(latent_prior, precision="float16")
    assert not prior.decode(torch.full((1, 4, 8, 8), float("nan"))).isfinite().any()
    assert prior.notes == []


def test_a_unet_that_overflows_names_the_setting(
    latent_prior: Path, tmp_path: Path
) -> None:
    folder = copy(latent_prior, tmp_path)
    scale(folder / UNET, "conv_out.weight", 1e6)
    z, step = noise((4, 8, 8)), torch.tensor([10, 20])
    assert bool(load(folder).predict(z, step).isfinite().all())
    with pytest.raises(AttackError, match=r"U-Net that fit into float16.*bfloat16"):
        load(folder, precision="float16").predict(z, step)


def test_a_gradient_that_overflows_names_the_setting() -> None:
    start = torch.full((1, 1, 1, 1), 1e-6, requires_grad=True)
    out = in_precision(lambda x: x * 6e4 * 6e4, start, torch.float16)
    assert bool(out.isfinite().all())
    with pytest.raises(AttackError, match="gradients that fit into float16"):
        torch.autograd.grad(out, start, torch.ones_like(out))
    out = in_precision(lambda x: x * 2, start, torch.float16)
    (gradient,) = torch.autograd.grad(out, start, torch.full_like(out, float("nan")))
    assert bool(gradient.isnan().all())
