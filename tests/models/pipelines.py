"""Tiny pipelines of diffusers with random weights, as diffusers saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

BLOCKS = (16, 32)


def latent_pipeline(folder: Path, *, shift: float | None = None) -> Path:
    """Of the shape of Stable Diffusion: latents of 4×8×8 for images of 16 pixels."""
    import diffusers
    import transformers

    with torch.random.fork_rng():
        torch.manual_seed(0)
        unet = diffusers.UNet2DConditionModel(
            sample_size=8, in_channels=4, out_channels=4, layers_per_block=1,
            block_out_channels=BLOCKS, norm_num_groups=8, attention_head_dim=8,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=16,
        )  # fmt: skip
        vae = diffusers.AutoencoderKL(
            block_out_channels=BLOCKS, norm_num_groups=8, sample_size=16,
            down_block_types=("DownEncoderBlock2D",) * 2, shift_factor=shift,
            up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4,
        )  # fmt: skip
        text_encoder = transformers.CLIPTextModel(
            transformers.CLIPTextConfig(
                vocab_size=4, hidden_size=16, intermediate_size=16, bos_token_id=0,
                num_hidden_layers=1, num_attention_heads=2, eos_token_id=1,
                max_position_embeddings=8, pad_token_id=1,
            )
        )  # fmt: skip
    scheduler = diffusers.DDIMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear",
        clip_sample=False, set_alpha_to_one=False, steps_offset=1,
    )  # fmt: skip
    diffusers.StableDiffusionPipeline(
        vae=vae, text_encoder=text_encoder, tokenizer=_tokenizer(folder), unet=unet,
        scheduler=scheduler, safety_checker=None, feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(folder)  # fmt: skip
    return folder


def pixel_pipeline(
    folder: Path, *, channels: int = 3, attention: bool = False, **more: Any
) -> Path:
    """A DDPM on images of 8 pixels; without attention it is fully convolutional."""
    import diffusers

    with torch.random.fork_rng():
        torch.manual_seed(0)
        unet = diffusers.UNet2DModel(**{
            "sample_size": 8, "in_channels": channels, "out_channels": channels,
            "layers_per_block": 1, "block_out_channels": BLOCKS, "norm_num_groups": 8,
            "down_block_types": ("DownBlock2D",) * 2, "add_attention": attention,
            "up_block_types": ("UpBlock2D",) * 2, **more,
        })  # fmt: skip
    scheduler = diffusers.DDPMScheduler(beta_schedule="squaredcos_cap_v2")
    diffusers.DDPMPipeline(unet=unet, scheduler=scheduler).save_pretrained(folder)
    return folder


def change(file: Path, **values: Any) -> None:
    """Overwrite entries of a JSON file."""
    known = json.loads(file.read_text())
    file.write_text(json.dumps({**known, **values}))


def scale(file: Path, tensor: str, factor: float) -> None:
    """Multiply one tensor of a .safetensors file."""
    from safetensors.torch import load_file, save_file

    state = load_file(file)
    state[tensor] = state[tensor] * factor
    save_file(state, file, metadata={"format": "pt"})


def _tokenizer(folder: Path) -> Any:
    import transformers

    words = {"<|startoftext|>": 0, "<|endoftext|>": 1, "a</w>": 2, "a": 3}
    place = folder.with_name(f"{folder.name}-words")
    place.mkdir(parents=True)
    (place / "vocab.json").write_text(json.dumps(words))
    (place / "merges.txt").write_text("#version: 0.2\n")
    return transformers.CLIPTokenizer.from_pretrained(place)
