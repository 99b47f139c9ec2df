"""demo · inspect · audit · compare · report · gate · reproduce · schema: exit codes.

0 pass · 1 gate failed · 2 usage or configuration · 3 inconclusive or incomplete ·
4 nothing audited. Heavy imports happen inside the commands.
"""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from privaudit import _cli_compare, _cli_prior, _cli_reproduce, _cli_split
from privaudit import _options as read
from privaudit._cli_common import build, explain, finish, own_output, step
from privaudit._flags import (
    Attacks,
    BudgetOption,
    ChannelsLast,
    Countermeasures,
    Defenses,
    Device,
    Diffusion,
    ImageMode,
    Images,
    InverseNetworkFile,
    Layout,
    Limits,
    LocalSteps,
    MaxSsim,
    Mode,
    Model,
    Momentum,
    Numbers,
    Optimizer,
    Out,
    PrefixTokens,
    Public,
    Range,
    Rate,
    RedactOption,
    ResultPath,
    Seed,
    Size,
    SplitAt,
    TrainingStep,
    Weights,
)
from privaudit._terminal import (
    progress,
    say,
    show_inventory,
)
from privaudit.errors import (
    AttackError,
    NothingToAuditError,
)
from privaudit.errors import PrivauditError as _PrivauditError

if TYPE_CHECKING:
    pass

app = typer.Typer(
    name="privaudit",
    help="Does your PyTorch model give its training images away?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(_cli_reproduce.app, name="reproduce")
app.add_typer(_cli_split.networks, name="inverse-network")
app.add_typer(_cli_prior.app, name="prior")
app.command()(_cli_split.sweep)
app.command()(_cli_compare.compare)

JUDGING = ("demo", "audit", "gate")
"""Commands whose last line of standard output is the verdict, whatever happens."""


@app.command()
def demo(
    out: Out = Path("demo-report"),
    split: Annotated[
        bool, typer.Option("--split", help="A cut CNN in place of a gradient")
    ] = False,
    redact: RedactOption = "none",
    seed: Seed = 0,
) -> int:
    """Audit a model that leaks on shipped images: exit 1.

    A ViT-B/16 with dropout on photographs, half a minute; with --split a trained CNN
    that sends 256 features of a digit, under three minutes.
    """
    from privaudit._demo import ABOUT, run_demo, run_split_demo

    read.check_out(out)
    say(ABOUT["split" if split else "gradient"])
    with progress():
        result = run_split_demo(seed) if split else run_demo(seed)
    return finish(result, out, redact, pdf=not out.suffix)


@app.command()
def inspect(
    model: Model,
    weights: Weights = None,
    images: Annotated[list[Path] | None, typer.Option("--images")] = None,
    mean: Numbers = None,
    std: Numbers = None,
    size: Size = None,
    image_mode: ImageMode = None,
    value_range: Range = None,
    channels_last: ChannelsLast = False,
    training_step: TrainingStep = None,
    mode: Mode = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> int:
    """What is in the model: every random draw, what is shared, and what it means."""
    from privaudit._loading import load_images
    from privaudit.auditor import Auditor
    from privaudit.config import Client

    built = build(model, weights)
    sample = None
    if images:
        sample = load_images(
            images,
            size=read.size(size),
            mode=image_mode,
            channels_last=channels_last,
        )
    found = Auditor(
        built,
        training_step=step(training_step, mode),
        mean=read.numbers(mean, "mean"),
        std=read.numbers(std, "std"),
        value_range=value_range,
        client=Client(mode=mode or "train"),
    )
    with own_output():
        inventory = found.inventory(sample)
    if as_json:
        print(inventory.model_dump_json(indent=2))
    else:
        show_inventory(inventory)
    return 0


@app.command()
def audit(
    model: Model,
    images: Images,
    out: Out,
    weights: Weights = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            "--labels",
            help="CSV `file,class`, JSON, one id a line; an array; a folder of masks",
        ),
    ] = None,
    mean: Numbers = None,
    std: Numbers = None,
    size: Size = None,
    image_mode: ImageMode = None,
    value_range: Range = None,
    channels_last: ChannelsLast = False,
    show_bands: Annotated[
        str | None,
        typer.Option("--show-bands", help="Bands that pictures show, such as 4,3,2"),
    ] = None,
    training_step: TrainingStep = None,
    mode: Mode = None,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", min=1, help="Images in one step; default: all"),
    ] = None,
    local_steps: LocalSteps = 1,
    lr: Rate = None,
    optimizer: Optimizer = "sgd",
    momentum: Momentum = 0.0,
    autocast: Annotated[
        Literal["bfloat16", "float16"] | None,
        typer.Option("--autocast", help="Mixed precision that the client trains in"),
    ] = None,
    split: SplitAt = None,
    layout: Layout = None,
    prefix_tokens: PrefixTokens = None,
    public: Public = None,
    inverse_network: InverseNetworkFile = None,
    diffusion: Diffusion = None,
    defense: Defenses = None,
    countermeasures: Countermeasures = "auto",
    attacks: Attacks = "auto",
    infer_labels: Annotated[
        bool, typer.Option("--infer-labels", help="Do not give the labels away")
    ] = False,
    budget: BudgetOption = "standard",
    seed: Seed = 0,
    device: Device = None,
    max_ssim: MaxSsim = None,
    limit: Limits = None,
    redact: RedactOption = "none",
    resume: Annotated[
        Path | None,
        typer.Option("--resume", help="Keep what is finished here, and go on from it"),
    ] = None,
) -> int:
    """Attack the training step, or what a cut model sends; report it; gate on it."""
    from privaudit._label_files import load_labels
    from privaudit._loading import load_images
    from privaudit.auditor import Auditor
    from privaudit.config import Client, Knowledge

    read.check_out(out)
    policy = read.policy(max_ssim, limit)
    sides = read.size(size)
    load = partial(
        load_images, size=sides, mode=image_mode, channels_last=channels_last
    )
    pictures = load(images)
    ids = None if labels is None else load_labels(labels, pictures, size=sides)
    auditor = Auditor(
        build(model, weights),
        split=read.split(split, layout, prefix_tokens),
        priors=read.priors(public, inverse_network, diffusion, load),
        mean=read.numbers(mean, "mean"),
        std=read.numbers(std, "std"),
        training_step=step(training_step, mode),
        value_range=value_range,
        shown_bands=read.bands(show_bands),
        client=Client(
            batch_size=batch_size,
            mode=mode or "train",
            autocast=autocast,
            local_steps=local_steps,
            lr=read.rate(lr),
            optimizer=optimizer,
            momentum=read.fraction(momentum, "--momentum"),
        ),
        knowledge=Knowledge(labels="inferred" if infer_labels else "known"),
        defenses=read.defenses(defense),
        countermeasures=read.countermeasures(countermeasures),
        attacks=read.attacks(attacks),
        policy=policy,
        budget=read.budget(budget),
        seed=seed,
        device=device,
    )
    with progress(), own_output():
        result = auditor.audit((pictures, ids), resume=resume)
    return finish(result, out, redact)


@app.command()
def report(
    result: ResultPath,
    out: Annotated[
        Path | None,
        typer.Option("--out", help=".html, .json or a folder; default: beside it"),
    ] = None,
    redact: RedactOption = "none",
) -> int:
    """Write the report again from a result: no model and no GPU needed."""
    from privaudit.result import AuditResult

    folder = result if result.is_dir() else result.parent
    place = folder / "report.html" if out is None else out
    say(f"Report: {AuditResult.load(result).save(place, redact=redact)}")
    return 0


@app.command()
def gate(result: ResultPath, max_ssim: MaxSsim = None, limit: Limits = None) -> int:
    """Judge a result again under these limits, and exit with the verdict's code."""
    from privaudit.result import AuditResult

    loaded = AuditResult.load(result)
    verdict = loaded.judge(
        read.changed(loaded.record.config.policy, max_ssim, limit)
        if max_ssim is not None or limit
        else loaded.record.config.policy
    )
    explain(verdict)
    return verdict.exit_code


@app.command()
def schema() -> int:
    """Print the JSON schema of result.json."""
    from privaudit.result import AuditRecord

    print(json.dumps(AuditRecord.model_json_schema(), indent=2))
    return 0


def main() -> None:
    """Run the command line; every way out has its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal cannot show must not break a verdict.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    judging = arguments[:1] and arguments[0] in JUDGING
    try:
        return _code(arguments)
    except Exception as error:  # noqa: BLE001 - exit code 1 means "leaks", nothing else
        word, text, code = _way_out(error)
    except (KeyboardInterrupt, SystemExit) as end:
        stopped = isinstance(end, KeyboardInterrupt)
        text = "interrupted" if stopped else "ended by sys.exit or a closed pipe"
        word, code = "inconclusive", 3
    line = " ".join(f"privaudit: {word} | {text} | exit {code}".split())
    with contextlib.suppress(OSError):
        print(line, file=sys.stdout if judging else sys.stderr)
    return code


def _code(arguments: list[str]) -> int:
    code = app(args=arguments, standalone_mode=False)
    if not isinstance(code, int):
        return 0
    if code == _INTERRUPTED:
        raise KeyboardInterrupt
    return code


_INTERRUPTED = 130
"""What typer makes of Ctrl-C."""
_USAGE = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
"""The base of usage errors: click's, or that of the copy that newer typers carry."""


def _way_out(error: Exception) -> tuple[str, str, int]:
    """Word, text and exit code of an error."""
    if isinstance(error, _USAGE):
        error.show()  # type: ignore[attr-defined]
        text = error.format_message() or "no command given"  # type: ignore[attr-defined]
        return "error", f"usage: {text}", 2
    if isinstance(error, NothingToAuditError):
        return "not run", str(error), 4
    if isinstance(error, AttackError):
        return "inconclusive", str(error), 3
    if isinstance(error, _PrivauditError):
        return "error", str(error), 2
    if isinstance(error, typer.Abort):
        return "inconclusive", "interrupted", 3
    traceback.print_exception(error)
    return "inconclusive", "internal error, please report it", 3
