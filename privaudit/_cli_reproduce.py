"""reproduce dia, reproduce drag: the tables of a paper, run again on given images.

Heavy imports happen inside the command.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from privaudit._terminal import progress, say

if TYPE_CHECKING:
    from privaudit.study import Store
    from privaudit.study.dia_result import DiaResult
    from privaudit.study.drag_handed import Handed
    from privaudit.study.drag_result import DragResult
    from privaudit.study.reproduce_dia import Reproduction
    from privaudit.study.reproduce_drag import Reproduction as DragReproduction

app = typer.Typer(
    help="Run a paper's tables again and lay ours beside them.", no_args_is_help=True
)
COMPLETE, INCOMPLETE = 0, 3
"""Exit codes: everything asked for was run to its end, or not."""

T = TypeVar("T")


@app.callback()
def reproduce() -> None:
    """Run a paper's tables again and lay ours beside them."""


@app.command()
def dia(
    data: Annotated[
        Path, typer.Option("--data", help="Folder with dia_victims_{mnist,cifar10}.npz")
    ],
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the store and of the report")
    ],
    table: Annotated[
        list[int] | None, typer.Option("--table", help="3 to 9; may be repeated")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", help="mlp, vit, lenet, resnet18")
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option("--dataset", help="mnist, cifar10")
    ] = None,
    p: Annotated[
        list[float] | None, typer.Option("--p", help="Dropout rate; may be repeated")
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option("--batch", help="Images; may be repeated")
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option("--attack", help="ig, dia, wiig, april, dia-ig, dia-april"),
    ] = None,
    victims: Annotated[
        int, typer.Option("--victims", min=1, help="Per line of the paper")
    ] = 4,
    iterations: Annotated[
        int | None,
        typer.Option("--iterations", min=1, help="Cut searches short; stated"),
    ] = None,
    worst_case: Annotated[
        bool, typer.Option(help="Also climb the ladder of an audit on each victim")
    ] = True,
    only_worst_case: Annotated[
        bool, typer.Option("--only-worst-case", help="Climb the ladder and no more")
    ] = False,
    merge: Annotated[
        list[Path] | None,
        typer.Option("--merge", help="Take over finished victims of another --out"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the lines with an estimate")
    ] = False,
) -> int:
    """Scheliga 2023: attacks on dropout, ours beside the paper's.

    Each attack on a victim is kept once it is finished; the same command goes on where
    it was stopped.
    """
    from privaudit.study import Store
    from privaudit.study.dia_paper import Wanted
    from privaudit.study.reproduce_dia import Reproduction, Task

    if only_worst_case and not worst_case:
        from privaudit._options import bad

        expected = "one of the two"
        raise bad("--only-worst-case", expected, "it and --no-worst-case")
    wanted = Wanted(
        tables=_some(table),
        models=_some(model),
        datasets=_some(dataset),
        rates=_some(p),
        batches=_some(batch),
        attacks=_some([a.lower() for a in attack or []]),
    )
    task = Task(
        wanted.rows(), data, victims, iterations, worst_case, not only_worst_case
    )
    store = Store(out, say)
    for other in merge or []:
        say(f"{store.merge(_existing(other))} cells taken over from {other}")
    made = Reproduction(task, store, say)
    if dry_run:
        return _list(made)
    with progress():
        result = made.run()
    return _finish(result, made, out)


@app.command()
def drag(
    images: Annotated[
        Path, typer.Option("--images", help="Folder with the paper's images")
    ],
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the store and of the report")
    ],
    table: Annotated[
        list[str] | None,
        typer.Option("--table", help="1, 2, 3, 5, 6, 7, 8, f4 (figure 4)"),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", help="clip-vit-b-16, clip-rn50, dinov2-base"),
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option("--split", help="layer-0 to layer-12, block-1 to block-5"),
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(
            "--attack",
            help="rmle, lm, glass, drag, drag_pp, in_network, drag_bedroom",
        ),
    ] = None,
    images_count: Annotated[
        int, typer.Option("--images-count", min=1, help="Per line of the paper")
    ] = 4,
    iterations: Annotated[
        int | None,
        typer.Option("--iterations", min=2, help="Cut searches short; stated"),
    ] = None,
    aerial_images: Annotated[
        Path | None, typer.Option("--aerial-images", help="Folder, for figure 4")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--source", help="Diffusion model: folder or identifier"),
    ] = None,
    bedroom_source: Annotated[
        str | None, typer.Option("--bedroom-source", help="The same, for table 3")
    ] = None,
    precision: Annotated[
        str, typer.Option("--precision", help="float32, float16, bfloat16: of both")
    ] = "float32",
    gan: Annotated[
        str | None, typer.Option("--gan", help="Generator for GLASS: path.py:factory")
    ] = None,
    gan_faces: Annotated[
        str | None,
        typer.Option("--gan-faces", help="Another, for images in a folder ffhq"),
    ] = None,
    inverse_networks: Annotated[
        Path | None,
        typer.Option("--inverse-networks", help="Folder of MODEL.SPLIT.safetensors"),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="Such as cuda")] = "cpu",
    merge: Annotated[
        list[Path] | None,
        typer.Option("--merge", help="Take over finished images of another --out"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the lines and what is missing")
    ] = False,
) -> int:
    """Lei 2025: attacks on split inference, ours beside the paper's.

    Each attack on an image is kept once it is finished; the same command goes on where
    it was stopped.
    """
    from privaudit.session.given import usable_device
    from privaudit.study import Store
    from privaudit.study.drag_paper import Wanted
    from privaudit.study.reproduce_drag import Reproduction, Task

    wanted = Wanted(
        tables=_some(table), models=_some(model), splits=_some(split),
        attacks=_some(attack),
    )  # fmt: skip
    handed = _handed(
        source, bedroom_source, precision=precision, gan=gan, gan_faces=gan_faces,
        inverse_networks=inverse_networks,
    )  # fmt: skip
    usable_device(device)
    task = Task(
        wanted.rows(), images, aerial_images, images_count, iterations, handed, device
    )
    store = Store(out, say)
    for other in merge or []:
        say(f"{store.merge(_existing(other))} cells taken over from {other}")
    made = Reproduction(task, store, say)
    if dry_run:
        return _list_drag(made)
    with progress():
        result = made.run()
    return _finish_drag(result, made, out)


def _handed(
    source: str | None,
    bedroom: str | None,
    *,
    precision: str,
    gan: str | None,
    gan_faces: str | None,
    inverse_networks: Path | None,
) -> Handed:
    """What the attacker has."""
    from privaudit._options import bad
    from privaudit.study.drag_handed import STABLE_DIFFUSION, Handed

    if precision not in ("float32", "float16", "bfloat16"):
        raise bad("--precision", "float32, float16 or bfloat16", precision)
    return Handed(
        source=source or STABLE_DIFFUSION, bedroom=bedroom,
        precision=precision,  # type: ignore[arg-type]
        gan=gan, gan_faces=gan_faces, inverse_networks=inverse_networks,
    )  # fmt: skip


def _finish_drag(result: DragResult, made: DragReproduction, out: Path) -> int:
    from privaudit.study import drag_page

    drag_page.write(result, made, out)
    say(drag_page.markdown(result))
    say(f"Report: {out / 'report.html'}; {made.computed} attacks were run just now.")
    code = COMPLETE if result.complete else INCOMPLETE
    done, asked = result.units
    word = "interrupted, partial" if result.interrupted else "attacks on images"
    print(f"privaudit: reproduce drag | {word}: {done} of {asked} | exit {code}")
    return code


def _list_drag(made: DragReproduction) -> int:
    """Lines, what is missing of each, and how long one took so far."""
    for row in made.task.rows:
        left, reason, seconds = made.missing(row)
        name = ", ".join(filter(None, [f"table {row.table}", row.place, row.attack]))
        parts = [f"{left} to run"] if left or not reason else []
        parts += [f"{_time(seconds)} each so far"] if seconds is not None else []
        if row.seconds is not None:
            parts.append(f"the paper's machine took {_time(row.seconds)}")
        parts += [f"not run: {reason}"] if reason else []
        print(f"{name}: {'; '.join(parts)}")
    for remedy in [*made.remedies.values(), *made.metrics_off.values()]:
        print(f"missing: {remedy}")
    return COMPLETE


def _finish(result: DiaResult, made: Reproduction, out: Path) -> int:
    from privaudit.study import dia_page

    dia_page.write(result, made, out)
    say(dia_page.markdown(result))
    say(f"Report: {out / 'report.html'}; {made.computed} attacks were run just now.")
    code = COMPLETE if result.complete else INCOMPLETE
    done, asked = result.units
    word = "interrupted, partial" if result.interrupted else "attacks on victims"
    print(f"privaudit: reproduce dia | {word}: {done} of {asked} | exit {code}")
    return code


def _list(made: Reproduction) -> int:
    """Lines, what is missing of each, and how long that takes."""
    made.look()
    total = 0.0
    for row in made.task.rows:
        missing, seconds = made.estimate(row)
        name = f"table {row.table}: {row.case.name}, {row.label}"
        if seconds is None:
            print(f"{name}: {row.missing or 'not part of this version'}: not run")
            continue
        total += missing * seconds
        print(f"{name}: {missing} to run, {_time(seconds)} each")
    print(
        f"At most {_time(total)} on one core like this, where no victim of these is "
        "finished; lines that share victims share the time. The audit's worst case "
        "adds up to one dropout_inversion a victim where no closed form is exact."
    )
    return COMPLETE


def _existing(folder: Path) -> Store:
    from privaudit._options import bad
    from privaudit.study import Store

    if not (folder / "cells").is_dir():
        raise bad("--merge", "a folder that reproduce has written", str(folder))
    return Store(folder, say)


def _some(values: Sequence[T] | None) -> tuple[T, ...] | None:
    return tuple(values) if values else None


def _time(seconds: float) -> str:
    """In the unit that fits."""
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
