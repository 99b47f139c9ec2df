"""Losses, iterates, masks and random draws, as the page shows them."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from PIL import Image

from privaudit.report import curves
from privaudit.report.sections.inventory import _FEW
from privaudit.result import AuditResult, CurvePoint, ImageStore
from tests.report import build, searching
from tests.report.reading import Page, page_of, saved_page


def drawing(page: Page, kind: str) -> str:
    return page.source.split(f'<svg class="chart {kind}"')[1].split("</svg>")[0]


def section(page: Page, anchor: str) -> Page:
    source = page.source.split(f'id="{anchor}"')[1].split("</section>")[0]
    return Page(f"<section>{source.partition('>')[2]}</section>")


def vertices(points: str) -> list[tuple[float, float]]:
    pairs = (pair.split(",") for pair in points.split())
    return [(float(x), float(y)) for x, y in pairs]


def test_sections_appear_only_where_there_is_something_to_say() -> None:
    plain = page_of(build.LEAKS.result()).heading("h2")
    assert "How the searches went" not in plain
    assert "Mask recovery" not in plain
    full = page_of(searching.result()).heading("h2")
    at = full.index("Attacks")
    assert full[at + 1 : at + 3] == ["How the searches went", "Mask recovery"]


def test_all_losses_share_one_axis_with_words_and_key() -> None:
    page = page_of(searching.result())
    svg = drawing(page, "curves")
    assert page.source.count('<svg class="chart curves"') == 1
    assert svg.count("<polyline") == 3
    assert "Losses of 3 searches</title>" in svg
    assert re.search(r"<desc[^>]*>dropout_inversion: converged .*Both scales", svg)
    for said in (
        "dropout_inversion · converged · final 0.0100 · at the truth 0.0020</text>",
        "inverting_gradients · plateau · final 0.0100 · at the truth 0.0000</text>",
        "well_informed · converged · final 0.0100 · diagnostic: uses what no attacker "
        "has</text>",
    ):
        assert said in svg
    assert svg.count('class="truth') == 1
    assert ">at the truth: dropout_inversion</text>" in svg
    # End of the line and key: filled where it arrived, hollow where it did not.
    assert svg.count('class="arrived"') == 4
    assert svg.count('class="short"') == 2


def test_scales_are_logarithmic() -> None:
    drawn = curves.draw([searching.attack("ig", "plateau", loss_truth=None)])
    ticks = {text: y for y, text in drawn.rows}
    assert ticks.keys() == {"1", "0.1", "0.01"}
    assert ticks["0.1"] - ticks["1"] == pytest.approx(ticks["0.01"] - ticks["0.1"])
    line = dict(vertices(drawn.curves[0].points))
    marks = {text: x for x, text in drawn.columns}
    assert marks.keys() == {"0", "10", "100", "1,000"}
    assert line[marks["100"]] == pytest.approx(ticks["0.1"], abs=0.2)
    assert line[marks["0"]] == pytest.approx(ticks["1"], abs=0.2)
    assert drawn.curves[0].end == (marks["1,000"], ticks["0.01"])


def test_what_a_logarithm_cannot_show_is_left_out() -> None:
    losses = [math.nan, 0.0, -1.0, math.inf, 0.5]
    points = [CurvePoint(iteration=i, loss=v) for i, v in enumerate(losses)]
    one = searching.attack("ig", "failed", curve=points, loss_truth=math.nan)
    drawn = curves.draw([one])
    assert len(vertices(drawn.curves[0].points)) == 1
    assert all(map(math.isfinite, vertices(drawn.curves[0].points)[0]))
    nothing = one.model_copy(update={"curve": points[:4], "iterates": []})
    page = page_of(searching.result(attacks=[nothing]))
    assert "How the searches went" not in page.heading("h2")


@pytest.mark.parametrize("last", [0, 1, 7, 1000, 20_000])
def test_long_curves_are_thinned_and_keep_their_ends(last: int) -> None:
    points = [CurvePoint(iteration=i, loss=1.0) for i in range(last + 1)]
    kept = curves.thinned(points, 50)
    assert len(kept) <= 50
    assert len(kept) == len(points) or len(kept) > 25
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert sorted({p.iteration for p in kept}) == [p.iteration for p in kept]


def test_losses_at_one_truth_share_their_label() -> None:
    both = [searching.attack(name, "converged") for name in ("ig", "dia")]
    drawn = curves.draw(both)
    assert [t.text for t in drawn.truths if t.text] == ["at the truth: ig, dia"]


def test_losses_are_a_table_too() -> None:
    (attack, *_) = searching.attacks()
    short = searching.attack("short", "converged", curve=attack.curve[:21], iterates=[])
    text = page_of(searching.result(attacks=[attack, short])).text
    assert "The losses as a table" in text
    assert "0 1.0000 1.0000 1 1.0000 1.0000 3 1.0000 1.0000 10 0.7943 0.7943" in text
    assert "100 0.1000 0.1000 300 0.0100 – 1,000 0.0100 –" in text


def test_strip_shows_the_way_from_noise_to_the_end() -> None:
    page = section(page_of(searching.result()), "searches")
    alts = [image["alt"] for image in page.all("img")]
    assert alts[:6] == [
        *(
            f"Image 0 (photo-0.png) at iteration {n} of dropout_inversion"
            for n in searching.MILESTONES
        ),
        "Final reconstruction of image 0 (photo-0.png) by dropout_inversion",
        "Original of image 0 (photo-0.png)",
    ]
    assert len(alts) == 18
    assert "Iteration 0 Iteration 10 Iteration 30 Iteration 100 Final" in page.text
    assert page.heading("h3")[2].endswith("diagnostic: uses what no attacker has")
    assert "diagnostic" not in " ".join(page.heading("h3")[:2])


@pytest.mark.parametrize("redact", ["originals", "all"])
def test_iterates_are_reconstructions_to_a_redaction(
    redact: str, tmp_path: Path
) -> None:
    given = searching.images()
    folder = searching.result().save(tmp_path / "out", redact=redact)  # type: ignore[arg-type]
    for name in searching.ITERATES:
        same = (folder / name).read_bytes() == given[name]
        assert same == (redact == "originals"), name
    text = section(saved_page(folder / "report.html"), "searches")
    alts = " ".join(image["alt"] or "" for image in text.all("img"))
    assert ("of dropout_inversion, blurred" in alts) == (redact == "all")
    bare = searching.result().save(tmp_path / "bare.json", redact=redact)  # type: ignore[arg-type]
    steps = [s for a in AuditResult.load(bare).record.attacks for s in a.iterates]
    assert len(steps) == 12
    assert all((s.image is None) == (redact == "all") for s in steps)


def test_thumbnails_stay_small() -> None:
    noise = build.as_png(Image.effect_noise((512, 512), 120).convert("RGB"))
    files = {**searching.images(), **dict.fromkeys(searching.ITERATES, noise)}
    result = AuditResult(searching.result().record, ImageStore(files))
    page = section(page_of(result), "searches")
    sizes = [
        len(i["src"] or "") for i in page.all("img") if "iteration" in (i["alt"] or "")
    ]
    assert len(sizes) == 12
    assert max(sizes) < 40_000 < len(noise)


def test_masks_have_means_bars_meaning_and_a_list() -> None:
    page = page_of(searching.result(mask_count=12))
    svg = drawing(page, "bars")
    assert "MMD of 12 masks found by dropout_inversion</title>" in svg
    assert "11 of 12 are better than blind" in svg
    assert svg.count('class="bar"') == svg.count('class="chance"') == 12
    heights = [float(h) for h in re.findall(r'class="bar".*?height="([\d.]+)"', svg)]
    assert heights[0] == pytest.approx(15 * heights[1], rel=0.05)
    masks = section(page, "masks")
    for said in (
        "Mean MMD 0.0815",
        "Mean TRD 0.0123",
        "0 is the same mask; a mask drawn blindly at the same rate has 2p(1 − p).",
        "dropout 0.1 8 0.0550 0.1800 0.0100 97 %",
        "attention-prob dropout 0.1 4 0.0200 0.1800 0.0100 97 %",
        "All 12 calls",
        "blocks.11.drop#0 attention-prob dropout 0.1 0.0200 0.1800 0.0100 97 %",
    ):
        assert said in masks.text
    assert len(masks.all("svg")) == 1
    few = section(page_of(searching.result(mask_count=2)), "masks")
    assert "calls" not in few.text.replace("Dropout calls", "").replace("all calls", "")
    assert "blocks.1.drop#0 dropout 0.1 0.0200" in few.text


def test_masks_without_a_list_still_have_their_means() -> None:
    only = searching.attack("dia", "converged", mask_mmd=0.0815, mask_trd=None)
    masks = section(page_of(searching.result(attacks=[only])), "masks")
    assert "Mean MMD 0.0815 over all calls Mean TRD –" in masks.text
    assert masks.all("svg") == []


def test_attack_table_says_what_a_search_took() -> None:
    text = section(page_of(searching.result()), "attacks").text
    row = (
        "dropout_inversion converged yes 61 s 1,000 2 restarts 12,345 0.0100 "
        "from 1.0000 – 66.7 %"
    )
    assert row in text
    assert (
        "well_informed converged diagnostic: uses what no attacker has no 61 s" in text
    )
    assert "12,345 values optimised, 1,000 iterations, 2 restarts" in text
    assert "Labels read off right 66.7 %" in text
    # A closed form searches nothing.
    assert "closed_form exact yes 1.84 s 0 – 2.00e-09 from 3.1000 ≤ 6.00e-06 –" in text


def test_many_draws_are_counted_first() -> None:
    inventory = build.inventory(census=True)
    calls = searching.draws(49)
    many = inventory.model_copy(update={"stochastic": calls})
    page = page_of(build.LEAKS.result(inventory=many))
    outside = Page(re.sub(r"<details>.*?</details>", "", page.source, flags=re.S))
    assert "49 random draws by kind and p" in outside.text
    assert "dropout 0.1 36 1,440 layers.0#0" in outside.text
    assert "attention-prob dropout 0.1 12 480 layers.1#0" in outside.text
    assert "dropout 0.2 1 40 layers.48#0" in outside.text
    assert "layers.47#0" not in outside.text
    assert "All 49 calls" in page.text
    for call in calls:
        assert f"{call.name} {call.kind} {call.p:g} 1 × 5 × 8" in page.text
    few = inventory.model_copy(update={"stochastic": searching.draws(_FEW)})
    assert "by kind and p" not in page_of(build.LEAKS.result(inventory=few)).text
