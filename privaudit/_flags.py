"""The options of the command line that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Redact = Literal["none", "originals", "all"]
Model = Annotated[
    str,
    typer.Option("--model", help="package.module:factory or path.py:factory"),
]
Weights = Annotated[
    Path | None,
    typer.Option("--weights", help=".safetensors, or .pt with weights only"),
]
Numbers = Annotated[
    str | None, typer.Option(help="One number per channel, such as 0.485,0.456,0.406")
]
Size = Annotated[
    str | None,
    typer.Option("--size", help="Resize and centre-crop to N or HEIGHTxWIDTH"),
]
ImageMode = Annotated[
    Literal["RGB", "L"] | None,
    typer.Option("--image-mode", help="Convert images on purpose"),
]
Range = Annotated[
    tuple[float, float] | None,
    typer.Option(
        "--range",
        metavar="LOW HIGH",
        help="Black and white in the units of the images, such as 0 4095",
    ),
]
ChannelsLast = Annotated[
    bool,
    typer.Option("--channels-last", help="Array files hold (height, width, channels)"),
]
TrainingStep = Annotated[
    str | None,
    typer.Option(
        "--training-step",
        help="package.module:function or path.py:function of (model, inputs, labels) "
        "that returns the loss",
    ),
]
Mode = Annotated[
    Literal["train", "as_is"] | None,
    typer.Option(
        "--mode", help="Modules in train mode for the step (default), or as they are"
    ),
]
LocalSteps = Annotated[
    int,
    typer.Option("--local-steps", min=1, help="Steps before the client sends (FedAvg)"),
]
Rate = Annotated[
    float | None,
    typer.Option("--lr", help="Learning rate, needed for more than one local step"),
]
Optimizer = Annotated[
    Literal["sgd", "adamw"],
    typer.Option("--optimizer", help="Of the client; of adamw one step"),
]
Momentum = Annotated[float, typer.Option("--momentum", help="Of the client's SGD")]
Seed = Annotated[
    int, typer.Option("--seed", min=0, max=2**32 - 1, help="Of every draw of the audit")
]
Out = Annotated[
    Path, typer.Option("--out", help="A folder, or a .html, .pdf or .json file")
]
RedactOption = Annotated[
    Redact,
    typer.Option("--redact", help="What to blur in the report"),
]
MaxSsim = Annotated[
    float | None, typer.Option("--max-ssim", help="Highest harmless SSIM")
]
Limits = Annotated[
    list[str] | None,
    typer.Option("--limit", help="Any metric, such as re_identification=.1"),
]
ResultPath = Annotated[
    Path, typer.Argument(help="The folder that `audit --out` wrote, or its result.json")
]
SplitAt = Annotated[
    str | None,
    typer.Option(
        "--split",
        help="Cut the model at this module, such as blocks.6, and attack what it sends",
    ),
]
Layout = Annotated[
    Literal["tokens", "nchw", "nhwc", "vector"] | None,
    typer.Option("--layout", help="Of the features, where it is not found"),
]
PrefixTokens = Annotated[
    int | None,
    typer.Option("--prefix-tokens", min=0, help="Tokens before the patches"),
]
Public = Annotated[
    list[Path] | None,
    typer.Option("--public", help="Images that the attacker has; may be repeated"),
]
InverseNetworkFile = Annotated[
    Path | None,
    typer.Option("--inverse-network", help="Trained before, .safetensors"),
]
Diffusion = Annotated[
    str | None,
    typer.Option(
        "--diffusion",
        metavar="SOURCE",
        help="Prior of drag: digits, natural, a file of `prior train`, the folder of a "
        "diffusers pipeline, or its identifier of the hub",
    ),
]
Defenses = Annotated[
    list[str] | None,
    typer.Option(
        "--defense",
        metavar="NAME[:SETTING=VALUE,…]",
        help="What acts on what is sent, such as gaussian_noise:noise_std=0.1; may be "
        "repeated, in the order in which it acts",
    ),
]
Countermeasures = Annotated[
    str,
    typer.Option(
        "--countermeasures",
        help="What the attacker does about defenses: auto, none, or names with commas",
    ),
]
Attacks = Annotated[
    str, typer.Option("--attacks", help="auto, all, or names with commas")
]
BudgetOption = Annotated[
    str, typer.Option("--budget", help="quick, standard, thorough, or seconds")
]
Device = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda, cuda:1; default: cpu")
]
Images = Annotated[
    list[Path], typer.Option("--images", help="Files or folders; may be repeated")
]
