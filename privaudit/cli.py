"""demo · inspect · audit · report · gate · schema, and their exit codes.

0 pass · 1 gate failed · 2 usage or configuration · 3 inconclusive or incomplete ·
4 nothing audited. Heavy imports happen inside the commands.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from privaudit.errors import AttackError, ConfigError, NothingToAuditError
from privaudit.errors import PrivauditError as _PrivauditError

if TYPE_CHECKING:
    from privaudit.inventory.records import Inventory
    from privaudit.result import AuditResult
    from privaudit.verdict import Policy, Verdict

app = typer.Typer(
    name="privaudit",
    help="Does your PyTorch model give its training images away?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

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
    str | None,
    typer.Option("--image-mode", help="Convert images on purpose: RGB or L"),
]
Out = Annotated[Path, typer.Option("--out", help="A folder, or a .html or .json file")]
RedactOption = Annotated[
    Redact,
    typer.Option("--redact", help="What to blur in the report"),
]
MaxSsim = Annotated[
    float | None, typer.Option("--max-ssim", help="Highest harmless SSIM")
]
Limits = Annotated[
    list[str] | None,
    typer.Option("--limit", help="Limit of another metric, such as mse=.01"),
]
ResultPath = Annotated[
    Path, typer.Argument(help="The folder that `audit --out` wrote, or its result.json")
]


@app.command()
def demo(
    out: Out = Path("demo-report"), redact: RedactOption = "none", seed: int = 0
) -> int:
    """Audit a ViT-B/16 with dropout on shipped photographs. It leaks: exit 1."""
    from privaudit._demo import PHOTOGRAPHS, run_demo

    _say(
        "Auditing torchvision's ViT-B/16 (dropout .1, random weights) on "
        f"{PHOTOGRAPHS} photographs, one client each: about half a minute on two cores."
    )
    return _finish(run_demo(seed), out, redact)


@app.command()
def inspect(
    model: Model,
    weights: Weights = None,
    images: Annotated[list[Path] | None, typer.Option("--images")] = None,
    mean: Numbers = None,
    std: Numbers = None,
    size: Size = None,
    image_mode: ImageMode = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> int:
    """What is in the model: every random draw, what is shared, and what it means."""
    from privaudit._loading import load_images
    from privaudit.auditor import Auditor

    built = _build(model, weights)
    sample = None
    if images:
        sample = load_images(images, size=_size(size), mode=image_mode)
    found = Auditor(built, mean=_numbers(mean, "mean"), std=_numbers(std, "std"))
    inventory = found.inventory(sample)
    if as_json:
        print(inventory.model_dump_json(indent=2))
    else:
        _show_inventory(inventory)
    return 0


@app.command()
def audit(
    model: Model,
    images: Annotated[
        list[Path], typer.Option("--images", help="Files or folders; may be repeated")
    ],
    out: Out,
    weights: Weights = None,
    labels: Annotated[
        Path | None,
        typer.Option("--labels", help="CSV `file,class`, JSON, or one id a line"),
    ] = None,
    mean: Numbers = None,
    std: Numbers = None,
    size: Size = None,
    image_mode: ImageMode = None,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", help="Images in one step; left out: all of them"),
    ] = None,
    attacks: Annotated[
        str, typer.Option("--attacks", help="auto, all, or names with commas")
    ] = "auto",
    infer_labels: Annotated[
        bool, typer.Option("--infer-labels", help="Do not give the labels away")
    ] = False,
    budget: Annotated[
        str, typer.Option("--budget", help="quick, standard, thorough, or seconds")
    ] = "standard",
    seed: int = 0,
    device: str | None = None,
    max_ssim: MaxSsim = None,
    limit: Limits = None,
    redact: RedactOption = "none",
) -> int:
    """Attack the model's training step on your images; write a report; gate on it."""
    from privaudit._loading import load_images, load_labels
    from privaudit.auditor import Auditor
    from privaudit.config import Client, Knowledge

    policy = _policy(max_ssim, limit)
    pictures = load_images(images, size=_size(size), mode=image_mode)
    ids = None if labels is None else load_labels(labels, pictures)
    auditor = Auditor(
        _build(model, weights),
        mean=_numbers(mean, "mean"),
        std=_numbers(std, "std"),
        client=Client(batch_size=batch_size),
        knowledge=Knowledge(labels="inferred" if infer_labels else "known"),
        attacks=attacks if attacks in ("auto", "all") else _words(attacks),
        policy=policy,
        budget=_budget(budget),
        seed=seed,
        device=device,
    )
    return _finish(auditor.audit((pictures, ids)), out, redact)


@app.command()
def report(
    result: ResultPath,
    out: Annotated[Path, typer.Option("--out", help=".html, .json or a folder")],
    redact: RedactOption = "none",
) -> int:
    """Write the report again from a result: no model and no GPU needed."""
    from privaudit.result import AuditResult

    _say(f"Report: {AuditResult.load(result).save(out, redact=redact)}")
    return 0


@app.command()
def gate(result: ResultPath, max_ssim: MaxSsim = None, limit: Limits = None) -> int:
    """Judge a result again under these limits, and exit with the verdict's code."""
    from privaudit.result import AuditResult

    loaded = AuditResult.load(result)
    verdict = loaded.judge(
        _changed(loaded.record.config.policy, max_ssim, limit)
        if max_ssim is not None or limit
        else loaded.record.config.policy
    )
    _explain(verdict)
    return verdict.exit_code


@app.command()
def schema() -> int:
    """Print the JSON schema of result.json."""
    from privaudit.result import AuditRecord

    print(json.dumps(AuditRecord.model_json_schema(), indent=2))
    return 0


def main() -> None:
    """Run the command line; every way out has its exit code."""
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: list[str]) -> int:
    import click

    try:
        code = app(args=arguments, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return _failed("usage", 2)
    except NothingToAuditError as error:
        return _failed(str(error), 4, word="not run")
    except AttackError as error:
        return _failed(str(error), 3, word="inconclusive")
    except _PrivauditError as error:
        return _failed(str(error), 2)
    except (KeyboardInterrupt, click.exceptions.Abort):
        return _failed("interrupted", 3, word="inconclusive")
    except Exception:  # noqa: BLE001 - exit code 1 means "leaks" and nothing else
        traceback.print_exc()
        return _failed("internal error, please report it", 3, word="inconclusive")


def _failed(text: str, code: int, *, word: str = "error") -> int:
    print(f"privaudit: {word} | {text} | exit {code}", file=sys.stderr)
    return code


def _finish(result: AuditResult, out: Path, redact: Redact) -> int:
    place = result.save(out, redact=redact)
    _show_attacks(result)
    _show_findings(result.record.inventory)
    _say(f"Report: {place / 'report.html' if place.is_dir() else place}")
    _explain(result.verdict)
    return result.verdict.exit_code


def _explain(verdict: Verdict) -> None:
    for cause in verdict.causes:
        _say(f"{cause.text}. {cause.remedy}")
    print(verdict.line)


def _build(spec: str, weights: Path | None) -> Any:
    from privaudit._loading import load_model, load_weights

    model = load_model(spec)
    if weights is not None:
        for note in load_weights(model, weights):
            _say(note)
    return model


def _policy(max_ssim: float | None, limit: list[str] | None) -> Policy:
    from privaudit.verdict import Policy

    return _changed(Policy(), max_ssim, limit)


def _changed(policy: Policy, max_ssim: float | None, limit: list[str] | None) -> Policy:
    if max_ssim is not None:
        policy = policy.with_limit("ssim", max_ssim)
    for entry in limit or []:
        metric, equals, value = entry.partition("=")
        if not equals:
            raise _bad("--limit", "metric=number", entry)
        policy = policy.with_limit(metric.strip(), _number(value, "--limit"))
    return policy


def _budget(text: str) -> Any:
    from privaudit.config import Budget

    if text.replace(".", "", 1).isdigit():
        return Budget(seconds=float(text))
    return text


def _numbers(text: str | None, name: str) -> list[float] | None:
    if text is None:
        return None
    return [_number(word, f"--{name}") for word in _words(text)]


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _bad(where, "numbers", text) from None


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    sides = text.lower().split("x")
    if not all(s.isdigit() and int(s) > 0 for s in sides) or len(sides) > 2:
        raise _bad("--size", "N or HEIGHTxWIDTH", text)
    return int(sides[0]), int(sides[-1])


def _bad(where: str, expected: str, got: str) -> ConfigError:
    return ConfigError(where, expected=expected, got=repr(got), hint="See --help.")


def _words(text: str) -> list[Any]:
    return [w for w in text.replace(",", " ").split() if w]


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _show_attacks(result: AuditResult) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("attack", "state", "images", "worst SSIM", "seconds", box=None)
    for label, attack in result.attacks.items():
        values = [s.value for s in attack.scores.get("ssim", []) if s.value is not None]
        table.add_row(
            label,
            attack.state,
            str(len(values)) if values else "-",
            f"{max(values):.4f}" if values else "-",
            f"{attack.record.seconds:.1f}" if attack.record.outcomes else "-",
        )
    Console(stderr=True).print(table)


def _show_findings(inventory: Inventory) -> None:
    for finding in inventory.findings:
        _say(f"[{finding.severity}] {finding.title} ({finding.where})")


def _show_inventory(inventory: Inventory) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(
        f"{inventory.model}: input {inventory.input_shape}, shares "
        f"{inventory.trainable} of {inventory.parameters} values"
    )
    table = Table("stochastic call", "kind", "p", "shape", "in eval", box=None)
    for call in inventory.stochastic:
        p = "-" if call.p is None else f"{call.p:.3g}"
        shape = "x".join(map(str, call.shape)) if call.active else "inactive"
        table.add_row(call.name, call.kind, p, shape, "yes" if call.in_eval else "no")
    console.print(table if inventory.stochastic else "stochastic calls: none found")
    for finding in inventory.findings:
        console.print(f"\n[{finding.severity}] {finding.title} ({finding.where})",
                      markup=False)  # fmt: skip
        console.print(f"{finding.text} {finding.remedy}".strip(), markup=False)
