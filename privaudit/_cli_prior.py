"""prior train, prior card: the command about what images look like."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from privaudit import _options as read
from privaudit._flags import Device, Seed
from privaudit._terminal import progress, say

if TYPE_CHECKING:
    from privaudit.priors.diffusion._training import PriorTrainer

app = typer.Typer(
    help="Train and describe diffusion priors: what images look like.",
    no_args_is_help=True,
)
Words = Annotated[str, typer.Option(help="Goes onto its card")]


@app.callback()
def prior() -> None:
    """Train and describe diffusion priors: what images look like."""


@app.command()
def train(
    images: Annotated[
        list[str],
        typer.Option(
            "--images",
            help="Folder, .zip or .npz; FILE:PART for a part of it; may be repeated: "
            "each is drawn from equally often",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="File to write, .safetensors")],
    name: Annotated[str, typer.Option("--name", help="What users call it")],
    learnt_from: Words = "not stated",
    good_for: Words = "images like those that it learnt from",
    not_for: Words = "any others",
    licence: Words = "",
    image_mode: Annotated[
        Literal["RGB", "L"], typer.Option("--image-mode", help="Colour or grey")
    ] = "RGB",
    size: Annotated[int, typer.Option("--size", min=8, help="Side of crops")] = 64,
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="First images of each source")
    ] = None,
    widths: Annotated[
        str, typer.Option("--widths", help="Channels of each level, multiples of 8")
    ] = "64,128,160,192",
    batch_size: Annotated[int, typer.Option("--batch-size", min=1)] = 32,
    steps: Annotated[int, typer.Option("--steps", min=1, help="At most")] = 20_000,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=1, help="At most")
    ] = None,
    rate: Annotated[float, typer.Option("--rate", help="Learning rate")] = 8e-4,
    average: Annotated[float, typer.Option("--average", min=0, max=1)] = 0.999,
    flip: Annotated[bool, typer.Option(help="Also learn mirrored images")] = True,
    bfloat16: Annotated[
        bool, typer.Option("--bfloat16", help="Faster where the processor has units")
    ] = False,
    start: Annotated[
        Path | None, typer.Option("--start", help="Go on from this file")
    ] = None,
    seed: Seed = 0,
    device: Device = None,
) -> int:
    """Train a small diffusion prior; the file is written every few minutes.

    Ctrl-C keeps what was learnt.
    """
    import torch

    from privaudit._prior_images import stack
    from privaudit.priors.diffusion import file
    from privaudit.priors.diffusion._training import PriorTrainer, PriorTraining

    if out.suffix != ".safetensors":
        raise read.bad("--out", "a file that ends in .safetensors", str(out))
    settings = PriorTraining(
        size=size, widths=tuple(int(w) for w in read.words(widths)),
        batch_size=batch_size, steps=steps, learning_rate=rate, average=average,
        flip=flip, half=bfloat16,
    )  # fmt: skip
    words = {
        "name": name, "learnt_from": learnt_from, "good_for": good_for,
        "not_for": not_for, "licence": licence,
    }  # fmt: skip
    pictures = []
    for source in images:
        place, _, part = source.partition(":")
        pictures.append(
            stack(Path(place), mode=image_mode, size=size, part=part, count=count)
        )
        say(f"{source}: {len(pictures[-1])} images of {pictures[-1].shape[-1]} pixels")

    def keep(trainer: PriorTrainer) -> None:
        facts = trainer.facts(words)
        file.save(out, trainer.averaged, facts)
        say(
            f"{trainer.done} steps, {trainer.seconds:.0f} s: loss "
            f"{facts.card.loss:.4f} on held-out images; {facts.card.denoising_db} dB"
        )

    network, facts = (None, None) if start is None else file.load(start)
    trainer = PriorTrainer(
        pictures, settings, torch.Generator().manual_seed(seed),
        torch.device(device or "cpu"), keep, network,
        None if facts is None else facts.card,
    )  # fmt: skip
    with progress():
        trainer.run(seconds)
    print(f"privaudit: prior {name} | {out} | exit 0")
    return 0


@app.command()
def card(prior: Annotated[str, typer.Argument(help="A name, or a file")]) -> int:
    """Print what a prior was made from, and what it is good for, as JSON."""
    from privaudit.priors.diffusion import file, found

    print(file.load(found(prior))[1].card.model_dump_json(indent=2))
    return 0
