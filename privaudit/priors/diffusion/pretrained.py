"""Priors that somebody else trained: pipelines of the library diffusers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from privaudit._weights import shown
from privaudit.errors import ConfigError
from privaudit.priors.diffusion._hub import folder_of
from privaudit.priors.diffusion._libraries import quiet, require
from privaudit.priors.diffusion._networks import Autoencoder, Canvas, NoisePredictor
from privaudit.priors.diffusion._parts import Pipeline
from privaudit.priors.diffusion.base import DiffusionModel, DiffusionPrior
from privaudit.priors.diffusion.card import PriorCard

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CONDITIONS = (
    "class_embed_type", "num_class_embeds", "addition_embed_type",
    "encoder_hid_dim_type", "time_cond_proj_dim",
)  # fmt: skip
"""Settings of a U-Net that ask for more than a noisy image, a step and a prompt."""


class Diffusers(DiffusionPrior):
    """A pipeline of diffusers: pixels (DDPM, DDIM) or latents (Stable Diffusion 1, 2).

    Nothing but the empty prompt, and no classifier-free guidance.
    Source: Lei 2025, section 4.1, where it is Stable Diffusion 1.5.
    """

    name: ClassVar[str] = "diffusers"

    source: str
    """A folder that ``save_pretrained`` wrote, or an identifier of the hub."""
    precision: Literal["float32", "float16", "bfloat16"] = "float32"
    """That the networks compute in; noise levels and guidance stay in float32."""
    resolution: int | None = Field(default=None, ge=8)
    """Longer side of what it draws, in pixels; None: what it was made for, or the
    client's where a network on pixels is fully convolutional."""
    tiled: bool = False
    """Decode latents in tiles: less memory, and seams."""

    def check(self) -> None:
        """See :class:`~privaudit.priors.diffusion.DiffusionPrior`."""
        self._pipeline()

    def load(self, device: torch.device) -> DiffusionModel:
        """See :class:`~privaudit.priors.diffusion.DiffusionPrior`."""
        pipeline = self._pipeline()
        make = self._latents if pipeline.is_latent else self._pixels
        with quiet():
            return make(pipeline, device)

    def _pipeline(self) -> Pipeline:
        folder = folder_of(self.source)
        require()
        return Pipeline.at(folder, self.source)

    def _pixels(self, pipeline: Pipeline, device: torch.device) -> DiffusionModel:
        alphas, prediction = pipeline.noise_levels()
        network = pipeline.network("unet")
        own = network.config
        _require_unconditional(own, pipeline)
        made_for = _longest(own.sample_size)
        usual = None if _is_convolutional(own) else made_for
        channels, halvings = own.in_channels, len(own.block_out_channels) - 1
        canvas = Canvas(pipeline.where, channels, 2**halvings, self.resolution or usual)

        def same(images: Tensor) -> Tensor:
            return images

        return DiffusionModel(
            predict=NoisePredictor(
                network.to(device, self._dtype), self._dtype, channels
            ),
            alphas=alphas,
            prediction=prediction,
            decode=same,
            encode=canvas.resized,
            latent_shape=canvas.shape,
            clip=True,
            card=_card(pipeline, network, channels, made_for),
        )

    def _latents(self, pipeline: Pipeline, device: torch.device) -> DiffusionModel:
        alphas, prediction = pipeline.noise_levels()
        network = pipeline.network("unet")
        own, learnt_at = network.config, _longest(network.config.sample_size)
        coder = self._coder(pipeline, device, learnt_at)
        channels, canvas = coder.vae.config.latent_channels, coder.canvas
        _require_unconditional(own, pipeline, channels)
        prompt = pipeline.empty_prompt(own.cross_attention_dim)
        made_for = None if learnt_at is None else learnt_at * canvas.multiple
        dtype = self._dtype
        predict = NoisePredictor(
            network.to(device, dtype), dtype, channels, prompt.to(device, dtype)
        )
        return DiffusionModel(
            predict=predict,
            alphas=alphas,
            prediction=prediction,
            decode=coder.decode,
            encode=coder.encode,
            latent_shape=coder.latent_shape,
            clip=False,
            card=_card(pipeline, network, canvas.channels, made_for),
            notes=coder.notes,
        )

    def _coder(
        self, pipeline: Pipeline, device: torch.device, learnt_at: int | None
    ) -> Autoencoder:
        """Encoder and decoder, for a U-Net that learnt at a side of its latents."""
        import torch

        def read(dtype: torch.dtype) -> Any:
            vae = pipeline.network("vae").to(device, dtype)
            vae.enable_slicing()
            if self.tiled:
                vae.enable_tiling()
            return vae

        vae = read(self._dtype)
        factor = 2 ** (len(vae.config.block_out_channels) - 1)
        usual = None if learnt_at is None else learnt_at * factor
        longest = self.resolution or usual
        canvas = Canvas(pipeline.where, vae.config.out_channels, factor, longest)
        return Autoencoder(vae, self._dtype, canvas, lambda: read(torch.float32))

    @property
    def _dtype(self) -> torch.dtype:
        import torch

        found: torch.dtype = getattr(torch, self.precision)
        return found


def _card(
    pipeline: Pipeline, network: Any, channels: int, made_for: int | None
) -> PriorCard:
    """What is known of it: no more than what its files say."""
    folder = Path(pipeline.source).expanduser()
    name = shown(folder) if folder.is_dir() else pipeline.source
    return PriorCard(
        name=name,
        kind="latent diffusion" if pipeline.is_latent else "pixel diffusion",
        channels=channels,
        size=None if made_for is None else (made_for, made_for),
        parameters=sum(p.numel() for p in network.parameters()),
        learnt_from=f"not known; see the model card of {name}",
        good_for="images like those that it learnt from",
        not_for="any others",
    )


def _require_unconditional(
    own: Any, pipeline: Pipeline, channels: int | None = None
) -> None:
    """Refuse a U-Net that wants more than a noisy image, a step and a prompt.

    Args:
        own: Its config.
        pipeline: For the message.
        channels: Of latents; None: of whatever it takes.

    Raises:
        ConfigError: It does.
    """
    conditions = [name for name in CONDITIONS if getattr(own, name, None) is not None]
    wanted = channels or own.in_channels
    if own.in_channels != wanted:
        conditions.append(f"in_channels {own.in_channels} instead of {wanted}")
    if own.out_channels not in (own.in_channels, 2 * own.in_channels):
        conditions.append(f"out_channels {own.out_channels}")
    if conditions:
        raise ConfigError(
            f"{pipeline.where}, unet",
            expected="a U-Net from a noisy image and its step to noise of that shape",
            got=", ".join(conditions),
            hint="Take one without classes, masks or further conditions.",
        )


def _is_convolutional(own: Any) -> bool:
    """No attention anywhere: what it learnt at one size it does at another."""
    blocks = [*own.down_block_types, *own.up_block_types]
    attends = any("Attn" in name for name in blocks)
    middle = own.add_attention and getattr(own, "mid_block_type", "U") is not None
    return not (attends or middle)


def _longest(size: Any) -> int | None:
    """Of a side, a pair of sides, or nothing."""
    if size is None:
        return None
    return int(size) if isinstance(size, int) else int(max(size))
