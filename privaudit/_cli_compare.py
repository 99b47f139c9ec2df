"""compare: which defense to ship, and what it costs, from one file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from privaudit import _options as read
from privaudit._cli_common import build, own_output
from privaudit._terminal import progress, say
from privaudit.config import Client, Split
from privaudit.errors import ConfigError

if TYPE_CHECKING:
    from privaudit.auditor import Auditor
    from privaudit.defenses import Defense
    from privaudit.study.compare import DefenseStudy

CLEAR, LEAKS, INCOMPLETE = 0, 1, 3
"""Exit codes: some defense leaves no leak to find; every row leaks; anything else."""


class _Asked(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DefenseEntry(_Asked):
    """One defense of a row by name, with its settings."""

    name: str
    settings: dict[str, Any] = Field(default_factory=dict)


class Row(_Asked):
    """One row: a defense, or several that act one after the other."""

    name: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    chain: list[DefenseEntry] = Field(default_factory=list)

    def entries(self) -> list[DefenseEntry]:
        """All of it, in the order in which it acts."""
        own = [] if self.name is None else [self.name]
        return [*(DefenseEntry(name=n, settings=self.settings) for n in own),
                *self.chain]  # fmt: skip


class ComparisonFile(_Asked):
    """What `privaudit compare` reads. Paths count from the file's own folder."""

    model: str
    """``package.module:factory`` or ``path.py:factory``."""
    weights: Path | None = None
    images: list[Path] = Field(min_length=1)
    labels: Path | None = None
    size: str | None = None
    image_mode: Literal["RGB", "L"] | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    split: str | None = None
    """Cut of a split model; left out: gradients."""
    client: Client = Field(default_factory=Client)
    attacks: str | list[str] = "auto"
    public: list[Path] = Field(default_factory=list)
    """Images that the attacker has."""
    diffusion: str | None = None
    budget: str = "standard"
    """Of each audit: quick, standard, thorough, or seconds."""
    iterations: int | None = Field(default=None, ge=1)
    """Cap of each search."""
    max_ssim: float | None = None
    seed: int = 0
    device: str | None = None
    utility: str | None = None
    """``path.py:function`` of the model, that gives a number."""
    train_data: str | None = None
    """``path.py:function`` without arguments, that gives (images, labels) batches."""
    clients: int = Field(default=4, ge=1)
    """Of the federated training behind gradient defenses."""
    rounds: int = Field(default=100, ge=1)
    defense: list[Row] = Field(min_length=1)


def compare(
    file: Annotated[Path, typer.Argument(help="What to compare, as TOML")],
    out: Annotated[
        Path, typer.Option("--out", help="Folder of finished parts and of the report")
    ],
) -> int:
    """Attack each defense by who does not know of it, and by who does; price it.

    Finished parts are kept: the same command goes on where it was stopped.
    """
    from privaudit.study.federated import FederatedTraining

    asked = load(file)
    base = file.parent
    auditor, sample = _auditor(asked, base)
    with progress(), own_output():
        study = auditor.compare_defenses(
            sample,
            [_chain(row) for row in asked.defense],
            train_data=_function(asked.train_data, "train_data", base),
            utility=_function(asked.utility, "utility", base),
            training=FederatedTraining(clients=asked.clients, rounds=asked.rounds),
            out=out,
        )
    return _finish(study, out)


def load(file: Path) -> ComparisonFile:
    """Read and check what is asked for.

    Raises:
        ConfigError: Not there, not TOML, or with an entry that means nothing.
    """
    try:
        return ComparisonFile.model_validate(tomllib.loads(file.read_text("utf-8")))
    except OSError as error:
        got = error.strerror or str(error)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        got = f"no TOML: {error}"
    except ValidationError as error:
        said = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        got = "; ".join(said[:5])
    raise ConfigError(
        str(file), expected="a comparison as TOML: model, images, [[defense]]",
        got=got, hint="docs/how-to/compare-defenses.md shows one.",
    )  # fmt: skip


def _auditor(asked: ComparisonFile, base: Path) -> tuple[Auditor, Any]:
    from privaudit._label_files import load_labels
    from privaudit._loading import load_images
    from privaudit.auditor import Auditor
    from privaudit.config import Budget

    def pictures(files: list[Path]) -> Any:
        return load_images(
            [base / f for f in files], size=read.size(asked.size),
            mode=asked.image_mode, channels_last=False,
        )  # fmt: skip

    images = pictures(asked.images)
    ids = None
    if asked.labels is not None:
        ids = load_labels(base / asked.labels, images, size=read.size(asked.size))
    budget = read.budget(asked.budget)
    if asked.iterations is not None:
        from privaudit.config import resolve_budget

        budget = resolve_budget(budget).model_copy(
            update={"iterations": asked.iterations}
        )
    weights = None if asked.weights is None else base / asked.weights
    public = [Path(p) for p in asked.public]
    priors = read.priors(public, None, asked.diffusion, pictures)
    auditor = Auditor(
        build(_beside(asked.model, base), weights),
        split=None if asked.split is None else Split(asked.split),
        mean=asked.mean, std=asked.std, client=asked.client,
        attacks=asked.attacks, priors=priors,
        policy=read.policy(asked.max_ssim, None),
        budget=budget if isinstance(budget, Budget) else str(budget),
        seed=asked.seed, device=asked.device,
    )  # fmt: skip
    return auditor, images if asked.split is not None else (images, ids)


def _chain(row: Row) -> list[Defense]:
    from privaudit._plugin import by_name
    from privaudit.defenses import DEFENSES

    made: list[Defense] = []
    for entry in row.entries():
        try:
            made.append(by_name(DEFENSES, entry.name, entry.settings))
        except ValidationError as error:
            raise ConfigError(
                f"[[defense]] {entry.name}", expected="settings that it knows",
                got=read.setting_fault(error), hint="docs/reference lists them.",
            ) from error  # fmt: skip
    if not made:
        raise ConfigError(
            "[[defense]]", expected='name = "…", or chain = [{name = "…"}, …]',
            got="neither", hint='name = "none" is the row without a defense.',
        )  # fmt: skip
    return made


def _beside(spec: str, base: Path) -> str:
    """``path.py:name`` counted from the file's folder; module names as they are."""
    path, colon, name = spec.rpartition(":")
    return f"{base / path}{colon}{name}" if path.endswith(".py") else spec


def _function(spec: str | None, entry: str, base: Path) -> Any:
    from privaudit._loading import load_function

    if spec is None:
        return None
    with own_output():
        return load_function(_beside(spec, base), entry)


def _finish(study: DefenseStudy, out: Path) -> int:
    from privaudit.study import compare_page

    result = study.result
    study.save(out)
    say(compare_page.markdown(result))
    say(
        f"Report: {out / 'report.html'}; {study.computed} parts were measured just now."
    )
    leaking = [r for r in result.rows if r.leaks]
    clear = [
        r.label for r in result.rows
        if r.complete
        and all(a and a.word == "no leak found" for a in (r.naive, r.adaptive))
    ]  # fmt: skip
    code = CLEAR if clear and result.complete else INCOMPLETE
    code = LEAKS if result.rows and len(leaking) == len(result.rows) else code
    print(
        f"privaudit: compare | {len(leaking)} of {len(result.rows)} rows leak | "
        f"no leak found: {'; '.join(clear) or 'nowhere'} | exit {code}"
    )
    return code
