"""What the attacker of Lei 2025 is handed: checked, or why it is not there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from privaudit._provenance import model_digest
from privaudit.attacks import _inverse_file
from privaudit.errors import ConfigError, PrivauditError
from privaudit.study.drag_clients import training
from privaudit.study.drag_paper import PaperRow, slug
from privaudit.study.drag_unit import Place
from privaudit.study.keys import sha256, stable_json
from privaudit.types import FeatureTarget

Precision = Literal["float32", "float16", "bfloat16"]
STABLE_DIFFUSION = "stable-diffusion-v1-5/stable-diffusion-v1-5"
FACES = "ffhq"
"""A folder of this name holds the paper's faces, for which GLASS has a generator."""
_KNOWN_AS = {"bedroom": "diffusion"}
_PIECE = 2**20


@dataclass(frozen=True)
class Prior:
    """One thing that is handed over.

    Attributes:
        value: As attacks take it.
        digest: Of what it is.
    """

    value: object
    digest: str


@dataclass(frozen=True)
class Handed:
    """What ``reproduce drag`` was given for the attacker.

    Attributes:
        source: Diffusion model: a folder or an identifier of the hub.
        bedroom: Diffusion model of table 3, trained on LSUN bedroom.
        precision: Of both.
        gan: Generator for GLASS, ``path.py:factory``.
        gan_faces: Another one, for images in a folder ``ffhq``.
        inverse_networks: Folder with ``MODEL.SPLIT.safetensors``.
    """

    source: str = STABLE_DIFFUSION
    bedroom: str | None = None
    precision: Precision = "float32"
    gan: str | None = None
    gan_faces: str | None = None
    inverse_networks: Path | None = None

    def priors(self, row: PaperRow, place: Place, faces: bool) -> dict[str, Prior]:
        """What a line needs, by the name that attacks know.

        Args:
            row: The line.
            place: The cut.
            faces: Whether the image is of the paper's faces.

        Raises:
            ConfigError: It is not there; with what gets it.
        """
        return {
            _KNOWN_AS.get(need, need): self._one(need, row, place, faces)
            for need in row.needs
        }

    def absent(self, row: PaperRow) -> list[PrivauditError]:
        """What a line needs and is not there, as far as no client is asked."""
        found = []
        for need in row.needs:
            try:
                self._one(need, row, None, faces=False)
            except PrivauditError as error:
                found.append(error)
        return found

    def _one(self, need: str, row: PaperRow, place: Place | None, faces: bool) -> Prior:
        if need == "gan":
            return self._generator(faces)
        if need == "inverse_network":
            return self._inverse(row, place)
        if need == "bedroom":
            return self._bedroom()
        return diffusion(self.source, self.precision)

    def _bedroom(self) -> Prior:
        if self.bedroom is None:
            raise ConfigError(
                "--bedroom-source",
                expected="a diffusion model trained on LSUN bedroom",
                got="none",
                hint="hf download google/ddpm-ema-bedroom-256 --local-dir FOLDER, then "
                "--bedroom-source FOLDER",
            )
        return diffusion(self.bedroom, self.precision)

    def _generator(self, faces: bool) -> Prior:
        spec = (self.gan_faces if faces else None) or self.gan
        if spec is None:
            raise ConfigError(
                "--gan",
                expected="a generator: the paper takes StyleGAN-XL, for faces "
                "StyleGAN2-ADA (--gan-faces)",
                got="none",
                hint="Write a factory (docs/how-to/diffusion-priors.md), then "
                "--gan path.py:factory",
            )
        return _built(spec)

    def _inverse(self, row: PaperRow, place: Place | None) -> Prior:
        name = f"{slug(row.model)}.{slug(row.split)}.safetensors"
        folder = self.inverse_networks
        file = None if folder is None else folder / name
        if file is None or not file.is_file():
            raise ConfigError(
                "--inverse-networks",
                expected=f"a folder with {name}",
                got="none" if file is None else f"no {name} in {folder}",
                hint="Train it on public images: "
                + training(row.model, row.split, name),
            )
        if place is None:
            return Prior(file, "")
        known = place.memory.get(f"inverse network: {file}")
        if not isinstance(known, Prior):
            side = place.client.side
            target = FeatureTarget(place.client.module, place.exposure, None)
            _inverse_file.load(file, target, (3, side, side))
            known = Prior(file, sha256(file.read_bytes()))
            place.memory[f"inverse network: {file}"] = known
        return known


def diffusion(source: str, precision: Precision) -> Prior:
    """A diffusion prior, checked once, but not yet loaded.

    Raises:
        ConfigError: It is not there; with the command that fetches it.
        MissingDependencyError: diffusers is not installed.
    """
    found = _diffusion(source, precision)
    if isinstance(found, PrivauditError):
        raise found
    return found


@lru_cache
def _diffusion(source: str, precision: Precision) -> Prior | PrivauditError:
    from privaudit.priors.diffusion import Diffusers
    from privaudit.priors.diffusion._hub import folder_of

    prior = Diffusers(source=source, precision=precision)
    try:
        prior.check()
        return Prior(prior, folder_digest(folder_of(source), precision))
    except PrivauditError as error:
        return error


def folder_digest(folder: Path, salt: str = "") -> str:
    """Of the names, sizes, and first and last MiB of the weights and settings."""
    found = []
    for file in sorted(folder.rglob("*")):
        if (
            file.suffix not in (".safetensors", ".bin", ".json")
            or ".cache" in file.parts
        ):
            continue
        size = file.stat().st_size
        with file.open("rb") as stream:
            ends = stream.read(_PIECE)
            stream.seek(max(0, size - _PIECE))
            ends += stream.read(_PIECE)
        found.append([str(file.relative_to(folder)), size, sha256(ends)])
    return sha256(stable_json({"files": found, "salt": salt}))


@lru_cache
def _built(spec: str) -> Prior:
    from privaudit._loading import load_model

    module = load_model(spec, "--gan")
    return Prior(module, model_digest(module))
