"""sweep, and inverse-network train: the commands about cut models."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privaudit import _options as read
from privaudit._cli_common import build, own_output
from privaudit._flags import (
    Attacks,
    BudgetOption,
    ChannelsLast,
    Device,
    Diffusion,
    ImageMode,
    Images,
    InverseNetworkFile,
    Layout,
    Limits,
    MaxSsim,
    Model,
    Numbers,
    PrefixTokens,
    Public,
    Range,
    Seed,
    Size,
    Weights,
)
from privaudit._terminal import progress, say

if TYPE_CHECKING:
    from privaudit.auditor import Auditor
    from privaudit.study.sweep import CutStudy

networks = typer.Typer(
    help="Train networks that turn features back into images.", no_args_is_help=True
)
CLEAR, LEAKS, INCOMPLETE = 0, 1, 3
"""Exit codes of a sweep: some cut is clear; every cut leaks; no cut is clear, but some
got no answer."""


@networks.callback()
def inverse_network() -> None:
    """Train networks that turn features back into images."""


@networks.command()
def train(
    model: Model,
    split: Annotated[
        str, typer.Option("--split", help="Cut that it is for, such as blocks.6")
    ],
    public: Annotated[
        list[Path],
        typer.Option("--public", help="Images to learn from; may be repeated"),
    ],
    out: Annotated[Path, typer.Option("--out", help="File to write, .safetensors")],
    weights: Weights = None,
    mean: Numbers = None,
    std: Numbers = None,
    size: Size = None,
    image_mode: ImageMode = None,
    value_range: Range = None,
    channels_last: ChannelsLast = False,
    layout: Layout = None,
    prefix_tokens: PrefixTokens = None,
    iterations: Annotated[
        int | None, typer.Option("--iterations", min=1, help="Training steps at most")
    ] = None,
    width: Annotated[
        int | None, typer.Option("--width", min=8, help="Channels inside")
    ] = None,
    layers: Annotated[
        int | None, typer.Option("--layers", min=1, help="Blocks inside")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Images in one step")
    ] = None,
    budget: BudgetOption = "thorough",
    seed: Seed = 0,
    device: Device = None,
) -> int:
    """Train a network that undoes a client, on images of the attacker's own.

    The file fits this model, its weights and this cut, and no other: give it to
    `audit --split … --inverse-network FILE`.
    """
    from privaudit._loading import load_images
    from privaudit.attacks import InverseNetwork
    from privaudit.auditor import Auditor
    from privaudit.session.feature_training import train_inverse_network

    if out.suffix != ".safetensors":
        raise read.bad("--out", "a file that ends in .safetensors", str(out))
    images = load_images(
        public, size=read.size(size), mode=image_mode, channels_last=channels_last
    )
    given = {
        "iterations": iterations, "width": width,
        "layers": layers, "batch_size": batch_size,
    }  # fmt: skip
    settings = InverseNetwork.model_validate(
        {name: value for name, value in given.items() if value is not None}
    )
    auditor = Auditor(
        build(model, weights),
        split=read.split(split, layout, prefix_tokens),
        priors={"public_images": images},
        mean=read.numbers(mean, "mean"),
        std=read.numbers(std, "std"),
        value_range=value_range,
        budget=read.budget(budget),
        seed=seed,
        device=device,
    )
    with progress(), own_output(), auditor.open_features(images) as session:
        trained = train_inverse_network(session, settings, out)
    say(
        f"{trained.iterations} steps on {trained.images} images; mean squared error "
        f"{trained.error:.4f} at the end."
    )
    print(f"privaudit: inverse network for {split} | {out} | exit 0")
    return CLEAR


def sweep(
    model: Model,
    images: Images,
    out: Annotated[
        Path, typer.Option("--out", help="Folder of finished cuts and of the report")
    ],
    cut: Annotated[
        list[str] | None,
        typer.Option("--cut", help="Module to cut at; may be repeated; default: eight"),
    ] = None,
    weights: Weights = None,
    mean: Numbers = None,
    std: Numbers = None,
    size: Size = None,
    image_mode: ImageMode = None,
    value_range: Range = None,
    channels_last: ChannelsLast = False,
    public: Public = None,
    inverse_network: InverseNetworkFile = None,
    diffusion: Diffusion = None,
    attacks: Attacks = "auto",
    budget: BudgetOption = "standard",
    seed: Seed = 0,
    device: Device = None,
    max_ssim: MaxSsim = None,
    limit: Limits = None,
) -> int:
    """Audit a model at one cut after the other: where does it leak, at which cost?

    The budget holds for each cut. Finished cuts are kept: the same command goes on
    where it was stopped.
    """
    from privaudit._loading import load_images
    from privaudit.auditor import Auditor

    load = partial(
        load_images, size=read.size(size), mode=image_mode, channels_last=channels_last
    )
    built, pictures = build(model, weights), load(images)
    means, deviations = read.numbers(mean, "mean"), read.numbers(std, "std")
    with own_output():
        plain = Auditor(
            built, mean=means, std=deviations, value_range=value_range, device=device
        )
        cuts = cut or _some_cuts(plain, pictures)
    auditor = Auditor(
        built,
        split=cuts[0],
        priors=read.priors(public, inverse_network, diffusion, load),
        mean=means,
        std=deviations,
        value_range=value_range,
        attacks=read.attacks(attacks),
        policy=read.policy(max_ssim, limit),
        budget=read.budget(budget),
        seed=seed,
        device=device,
    )
    with progress(), own_output():
        study = auditor.sweep(pictures, cuts, out=out)
    return _finish(study, out)


def _some_cuts(auditor: Auditor, pictures: Any) -> list[str]:
    """Up to eight, over the depth of the model."""
    from privaudit.study.sweep import spread

    found = [s.name for s in spread(auditor.split_candidates(pictures))]
    if not found:
        raise read.bad("--cut", "a module to cut at", "nothing, and none was found")
    return found


def _finish(study: CutStudy, out: Path) -> int:
    from privaudit.study import sweep_page

    result = study.result
    study.save(out)
    say(sweep_page.markdown(result))
    say(f"Report: {out / 'report.html'}; {study.computed} cuts were audited just now.")
    clear = [r.name for r in result.rows if r.word == "no leak found"]
    leaking = [r for r in result.rows if r.word == "leaks"]
    code = CLEAR if clear and result.complete else INCOMPLETE
    code = LEAKS if result.rows and len(leaking) == len(result.rows) else code
    print(
        f"privaudit: sweep | {len(leaking)} of {len(result.rows)} cuts leak | "
        f"no leak found: {', '.join(clear) or 'nowhere'} | exit {code}"
    )
    return code
