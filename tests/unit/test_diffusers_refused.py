"""Priors that cannot be read or had: each says where, what and what to do."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit.errors import ConfigError, MissingDependencyError
from privaudit.priors.diffusion import (
    DIFFUSION_PRIORS,
    Diffusers,
    DiffusionModel,
    loaded,
)
from tests.contract.feature_cases import SHAPE
from tests.models.pipelines import change, pixel_pipeline

diffusers = pytest.importorskip("diffusers")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("connections")
CPU = torch.device("cpu")
UNET = "unet/diffusion_pytorch_model.safetensors"
HUB_ID = "nobody/no-such-prior"


def copy(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to / "copy"))


def load(folder: Path | str, **settings: Any) -> DiffusionModel:
    return Diffusers(source=str(folder), **settings).load(CPU)


def test_images_of_another_number_of_channels(
    latent_prior: Path, tmp_path: Path
) -> None:
    grey = pixel_pipeline(tmp_path / "p", channels=1)
    for prior, images in ((load(latent_prior), (1, 16, 16)), (load(grey), SHAPE)):
        wanted = 4 - images[0]
        with pytest.raises(ConfigError, match=rf"images of {wanted} chan.*prior tra"):
            prior.latent_shape(images)


def test_a_resolution_that_the_network_cannot_draw(latent_prior: Path) -> None:
    with pytest.raises(ConfigError, match="resolution: expected a multiple of 2,"):
        load(latent_prior, resolution=9)


def test_a_prediction_that_is_not_known(pixel_prior: Path, tmp_path: Path) -> None:
    folder = copy(pixel_prior, tmp_path)
    change(folder / "scheduler/scheduler_config.json", prediction_type="flow")
    with pytest.raises(ConfigError, match=r"one of epsilon, v_pred.*got 'flow'"):
        load(folder)


@pytest.mark.parametrize("name", ["FlowMatchEulerDiscreteScheduler", "NoSuch"])
def test_a_scheduler_without_alphas(
    pixel_prior: Path, tmp_path: Path, name: str
) -> None:
    folder = copy(pixel_prior, tmp_path)
    change(folder / "model_index.json", scheduler=["diffusers", name])
    if name != "NoSuch":
        diffusers.FlowMatchEulerDiscreteScheduler().save_pretrained(
            folder / "scheduler"
        )
    with pytest.raises(ConfigError, match=f"alphas_cumprod.*got {name}"):
        load(folder)


@pytest.mark.parametrize("part", ["unet", "vae", "text_encoder"])
def test_damaged_weights(latent_prior: Path, tmp_path: Path, part: str) -> None:
    from safetensors.torch import load_file, save_file

    folder = copy(latent_prior, tmp_path)
    (file,) = (folder / part).glob("*.safetensors")
    state = load_file(file)
    lost = next(iter(state))
    save_file({n: t for n, t in state.items() if n != lost}, file, {"format": "pt"})
    with pytest.raises(ConfigError, match=f"all weights.*1 tensors, such as.*{lost}"):
        load(folder)
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ConfigError, match=f"{part}: expected a .*missing or damaged"):
        load(folder)
    file.unlink()
    with pytest.raises(ConfigError, match=f"{part}: expected a .*hf download OWNER/NA"):
        load(folder)


def test_weights_of_another_shape(latent_prior: Path, tmp_path: Path) -> None:
    folder = copy(latent_prior, tmp_path)
    change(folder / "unet" / "config.json", cross_attention_dim=24)
    with pytest.raises(ConfigError, match="unet: expected a UNet2DConditionModel"):
        load(folder)


def test_a_text_encoder_of_another_pipeline(latent_prior: Path, tmp_path: Path) -> None:
    folder = copy(latent_prior, tmp_path)
    config = transformers.CLIPTextConfig(
        vocab_size=4, hidden_size=32, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=8,
    )  # fmt: skip
    transformers.CLIPTextModel(config).save_pretrained(folder / "text_encoder")
    with pytest.raises(ConfigError, match="width 16, as the U-Net's, got 32"):
        load(folder)


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"num_class_embeds": 3}, "got num_class_embeds"),
        ({"out_channels": 5}, "got out_channels 5"),
    ],
)
def test_a_unet_that_wants_more(
    more: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=match):
        load(pixel_pipeline(tmp_path / "p", **more))


def test_latents_of_another_width(latent_prior: Path, tmp_path: Path) -> None:
    folder = copy(latent_prior, tmp_path)
    unet = diffusers.UNet2DConditionModel.from_pretrained(folder / "unet")
    own = {**unet.config, "in_channels": 9}
    diffusers.UNet2DConditionModel.from_config(own).save_pretrained(folder / "unet")
    with pytest.raises(ConfigError, match="in_channels 9 instead of 4"):
        load(folder)


def test_folders_of_something_else(latent_prior: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"with model_index.json, got an empty fold"):
        load(tmp_path)
    (tmp_path / "model_index.json").write_text("[]")
    with pytest.raises(ConfigError, match="the index of a diffusers pipeline, got A"):
        load(tmp_path)
    (tmp_path / "model_index.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"a pipeline of a UNet2DM.*got no parts"):
        load(tmp_path)
    folder = copy(latent_prior, tmp_path)
    change(folder / "model_index.json", text_encoder_2=["transformers", "CLIPText"])
    with pytest.raises(ConfigError, match="text_encoder_2: CLIPText"):
        load(folder)


def test_words_that_name_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"digits, natural.*got 'digit', none of"):
        loaded("digit", DIFFUSION_PRIORS, CPU)
    file = tmp_path / "model.ckpt"
    file.touch()
    with pytest.raises(ConfigError, match=r"a file\. Check.*converted"):
        loaded(file, DIFFUSION_PRIORS, CPU)


# The hub


def cached(source: Path, cache: Path) -> Path:
    """As the hub lays a repository out."""
    own = cache / f"models--{HUB_ID.replace('/', '--')}"
    (own / "refs").mkdir(parents=True)
    (own / "refs" / "main").write_text("a" * 40)
    return Path(shutil.copytree(source, own / "snapshots" / ("a" * 40)))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_an_identifier_is_looked_for_in_the_cache(
    latent_prior: Path, cache: Path, connections: list[Any]
) -> None:
    folder = cached(latent_prior, cache)
    assert loaded(HUB_ID, DIFFUSION_PRIORS, CPU).card.name == HUB_ID
    shutil.rmtree(folder / "vae")
    with pytest.raises(ConfigError, match="and vae/ is missing there; not fetched"):
        load(HUB_ID)
    assert connections == []


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({}, "PRIVAUDIT_DOWNLOAD=1 is not set"),
        ({"PRIVAUDIT_DOWNLOAD": "1", "HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"),
        ({"PRIVAUDIT_DOWNLOAD": "1", "PRIVAUDIT_OFFLINE": "1"}, "PRIVAUDIT_OFFLINE is"),
    ],
)
def test_nothing_is_fetched_unasked(
    environment: dict[str, str], reason: str, cache: Path,
    monkeypatch: pytest.MonkeyPatch, connections: list[Any],
) -> None:  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"{reason}.*hf download {HUB_ID} --lo"):
        load(HUB_ID)
    assert connections == []


def test_it_is_fetched_where_that_is_allowed(
    pixel_prior: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub

    bare = copy(pixel_prior, tmp_path)
    (bare / UNET).unlink()
    asked = []

    def fetch(source: str, *, local_files_only: bool, **wanted: Any) -> str:
        asked.append((local_files_only, "*model.bin" in wanted["allow_patterns"]))
        if local_files_only:
            raise FileNotFoundError
        return str(pixel_prior if asked[-1][1] else bare)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    monkeypatch.setenv("PRIVAUDIT_DOWNLOAD", "1")
    for name in ("PRIVAUDIT_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    assert load(HUB_ID).card.name == HUB_ID
    assert asked == [(True, False), (False, False), (False, True)]


def test_a_fetch_that_fails_says_why(
    cache: Path, monkeypatch: pytest.MonkeyPatch, connections: list[Any]
) -> None:
    for name in ("PRIVAUDIT_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PRIVAUDIT_DOWNLOAD", "1")
    # The library reads its flag once, when it is first imported.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(ConfigError, match=r"fetching it failed: .*a network: `hf"):
        load(HUB_ID)
    assert connections != []


def test_a_library_that_is_not_there(
    latent_prior: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    for source in (str(latent_prior), HUB_ID):
        with pytest.raises(MissingDependencyError, match=r"privaudit\[diffusion\]"):
            load(source)
