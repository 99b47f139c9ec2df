"""The parts of a pipeline of diffusers, each read by itself and checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, get_args

import torch
from torch import Tensor

from privaudit._weights import shown
from privaudit.errors import ConfigError
from privaudit.priors.diffusion import _hub
from privaudit.priors.diffusion.schedule import Prediction

PIXELS = {"unet": ("UNet2DModel",)}
LATENTS = {
    "unet": ("UNet2DConditionModel",),
    "vae": ("AutoencoderKL",),
    "text_encoder": ("CLIPTextModel",),
    "tokenizer": ("CLIPTokenizer", "CLIPTokenizerFast"),
}
_BROKEN = (
    OSError, EOFError, RuntimeError, ValueError, LookupError, AttributeError, TypeError,
    ImportError, NotImplementedError, UnpicklingError,
)  # fmt: skip
"""What readers of damaged files raise, beside errors of safetensors."""
LOWEST = 2.0**-24
"""Of ᾱ: where a schedule ends in pure noise, x̂₀ must not be divided by zero."""


@dataclass(frozen=True)
class Pipeline:
    """What lies in a folder.

    Attributes:
        source: As the user wrote it.
        folder: Where it is.
        classes: Class of each part, by name.
    """

    source: str
    folder: Path
    classes: dict[str, str]

    @classmethod
    def at(cls, folder: Path, source: str) -> Pipeline:
        """What a folder holds, if it is of one of the two kinds that are understood.

        Raises:
            ConfigError: It is of another kind, or of none.
        """
        found = cls(source, folder, _hub.classes(folder))
        wanted = LATENTS if "vae" in found.classes else PIXELS
        unknown = {"text_encoder_2", "prior", "controlnet", "transformer", "vqvae"}
        fits = all(found.classes.get(n) in names for n, names in wanted.items())
        if not fits or unknown & set(found.classes):
            raise ConfigError(
                found.where,
                expected="a pipeline of a UNet2DModel (DDPM, DDIM), or one of a "
                "UNet2DConditionModel, an AutoencoderKL, a CLIPTextModel and a "
                "CLIPTokenizer (Stable Diffusion 1 and 2)",
                got=", ".join(f"{n}: {c}" for n, c in found.classes.items())
                or "no parts",
                hint="Take another pipeline.",
            )
        return found

    @property
    def where(self) -> str:
        """For messages."""
        return f"prior {self.source!r}"

    @property
    def is_latent(self) -> bool:
        """It diffuses latents, and a decoder draws the image."""
        return "vae" in self.classes

    def place(self, part: str) -> Path:
        """Where a part lies."""
        return _hub.place_of(self.folder, part)

    def network(self, part: str) -> Any:
        """A frozen network in float32 on the CPU.

        Raises:
            ConfigError: Its weights are not there, damaged, or not all there.
        """
        library: Any = _library(part)
        cls = getattr(library, self.classes[part])
        place = self.place(part)

        def read() -> Any:
            return cls.from_pretrained(
                place, local_files_only=True, output_loading_info=True,
                variant=_hub.variant(place),
            )  # fmt: skip

        network, facts = self._read(part, read)
        missing = sorted(facts["missing_keys"])
        if missing or facts["mismatched_keys"]:
            raise ConfigError(
                shown(place), expected="all weights of the network",
                got=f"none for {len(missing)} tensors, such as {missing[:1]}",
                hint=f"It is damaged or of something else. {self.advice}",
            )  # fmt: skip
        return network.float().eval().requires_grad_(False)

    def noise_levels(self) -> tuple[Tensor, Prediction]:
        """ᾱ of shape (levels,), and what the network predicts.

        Raises:
            ConfigError: A scheduler without ᾱ, or a prediction that is not known.
        """
        import diffusers

        cls = getattr(diffusers, self.classes.get("scheduler", ""), None)
        if cls is None:
            raise self._no_alphas()
        scheduler = self._read(
            "scheduler",
            lambda: cls.from_pretrained(self.place("scheduler"), local_files_only=True),
        )
        alphas = getattr(scheduler, "alphas_cumprod", None)
        if alphas is None:
            raise self._no_alphas()
        named = getattr(scheduler.config, "prediction_type", "epsilon")
        known: tuple[Prediction, ...] = get_args(Prediction)
        prediction = next((p for p in known if p == named), None)
        if prediction is None:
            raise ConfigError(
                f"{self.where}, scheduler_config.json",
                expected=f"prediction_type: one of {', '.join(known)}",
                got=repr(named),
                hint="Take another pipeline.",
            )
        levels = torch.as_tensor(alphas, dtype=torch.float32).clamp(min=LOWEST)
        return levels, prediction

    def empty_prompt(self, width: int) -> Tensor:
        """The embedding of "", (1, tokens, width) in float32; its encoder is let go.

        Raises:
            ConfigError: It cannot be read, or is of another width.
        """
        import transformers

        place = self.place("tokenizer")
        tokenizer = self._read(
            "tokenizer",
            lambda: transformers.CLIPTokenizer.from_pretrained(
                place, local_files_only=True
            ),
        )
        encoder = self.network("text_encoder")
        longest = encoder.config.max_position_embeddings
        tokens = tokenizer(
            "", padding="max_length", max_length=longest, truncation=True,
            return_tensors="pt",
        )  # fmt: skip
        with torch.no_grad():
            embedding: Tensor = encoder(tokens.input_ids).last_hidden_state
        if embedding.shape[2] != width:
            raise ConfigError(
                self.where, expected=f"a text encoder of width {width}, as the U-Net's",
                got=str(embedding.shape[2]), hint="Parts of two pipelines were mixed.",
            )  # fmt: skip
        return embedding

    @property
    def advice(self) -> str:
        """How to get it again."""
        return _hub.advice(self.source)

    def _read(self, part: str, read: Callable[[], Any]) -> Any:
        from safetensors import SafetensorError

        try:
            return read()
        except (*_BROKEN, SafetensorError) as error:
            text = " ".join(str(error).split())[:200]
            raise ConfigError(
                shown(self.place(part)),
                expected=f"a {self.classes[part]} as diffusers saves it",
                got=f"{type(error).__name__}: {text}",
                hint=f"It is missing or damaged. {self.advice}",
            ) from error

    def _no_alphas(self) -> ConfigError:
        return ConfigError(
            f"{self.where}, scheduler",
            expected="one with alphas_cumprod, such as DDPMScheduler or DDIMScheduler",
            got=self.classes.get("scheduler", "none"),
            hint="Name one that the network was trained with in model_index.json and "
            "scheduler_config.json, or take another pipeline.",
        )


def _library(part: str) -> Any:
    if part == "text_encoder":
        import transformers

        return transformers
    import diffusers

    return diffusers
