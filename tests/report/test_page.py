"""What stands on the page, for every kind of record."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from privaudit.config import AuditConfig, Client, Knowledge
from privaudit.report import facts
from privaudit.report.page import _environment
from privaudit.result import AuditResult, ImageStore
from privaudit.verdict import Score
from tests.report import build, searching
from tests.report.reading import Page, page_of

ALWAYS = [
    "Threat model",
    "What is in the model",
    "What a score looks like",
    "Attacks",
    "Controls",
    "Every image",
    "Limits used",
    "Limitations",
    "Provenance",
    "Skipped inputs",
]
IN_ORDER = [
    "Causes and notes",
    "Threat model",
    "What is in the model",
    "Pictures",
    "What a score looks like",
    "Attacks",
    "How the searches went",
    "Mask recovery",
    "SSIM per image",
    "Controls",
    "Every image",
    "Limits used",
    "Limitations",
    "Provenance",
    "Skipped inputs",
]


def test_the_leaking_page_has_every_section_in_order(leaking: AuditResult) -> None:
    assert page_of(searching.result()).heading("h2") == IN_ORDER
    only = ("How the searches went", "Mask recovery")
    plain = [title for title in IN_ORDER if title not in only]
    assert page_of(leaking).heading("h2") == plain


def test_every_page_has_the_sections_that_never_depend(case: build.Case) -> None:
    found = page_of(case.result()).heading("h2")
    assert [title for title in found if title in ALWAYS] == ALWAYS
    assert found == [title for title in IN_ORDER if title in found]


def test_first_screen_says_the_verdict(case: build.Case) -> None:
    result = case.result()
    page = page_of(result)
    (title,) = page.heading("h1")
    assert title.lower().startswith(result.verdict.word)
    assert (result.verdict.strength or "") in title
    assert result.verdict.line in page.text
    assert "Threat model An honest-but-curious server" in page.text


def test_first_screen_shows_worst_image_limit_margin_and_pair(
    leaking: AuditResult,
) -> None:
    page = page_of(leaking)
    first = page.source.split('class="contents"')[0]
    for text in ("Image 0", "by closed_form", "0.9100", "0.5000", "0.4100", "beyond"):
        assert text in first
    alts = re.findall(r'alt="([^"]*)"', first)
    assert alts == [
        "Original of image 0 (photo-0.png)",
        "Reconstruction of image 0 (photo-0.png) by closed_form",
    ]


def test_page_loads_nothing_and_runs_nothing(case: build.Case) -> None:
    page = page_of(case.result())
    assert "http://" not in page.source
    assert "https://" not in page.source
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "iframe", "object", "embed", "base", "form", "audio"}
    sources = [a["src"] for a in page.all("img")]
    assert all(s and s.startswith("data:image/png;base64,") for s in sources)
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        href = attributes.get("href")
        assert href is None or href[0] == "#" or href == "data:,"
    assert "url(" not in page.source
    assert "@import" not in page.source


def test_page_declares_language_title_scheme_and_policy(case: build.Case) -> None:
    page = page_of(case.result())
    assert page.all("html")[0]["lang"] == "en"
    assert re.search(r"<title>[^<]+VisionTransformer[^<]+</title>", page.source)
    metas = {
        a.get("name") or a.get("http-equiv"): a.get("content") for a in page.all("meta")
    }
    assert metas["Content-Security-Policy"] == (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    )
    assert metas["color-scheme"] == "light dark"
    assert page.unclosed == []


def test_every_image_has_words_and_a_size(case: build.Case) -> None:
    for image in page_of(case.result()).all("img"):
        assert image["alt"]
        assert image["width"] == image["height"] == "32"
        assert image["class"] == "pixelated"


def test_ids_are_unique_and_links_lead_somewhere(case: build.Case) -> None:
    page = page_of(case.result())
    ids = [a["id"] for _, a in page.tags if a.get("id")]
    assert len(ids) == len(set(ids))
    for link in page.all("a"):
        assert (link["href"] or "")[1:] in ids
    for _, attributes in page.tags:
        for name in (attributes.get("aria-labelledby") or "").split():
            assert name in ids


def test_large_pictures_are_not_pixelated() -> None:
    page = page_of(replace(build.LEAKS, size=(65, 70)).result())
    assert all("class" not in image for image in page.all("img"))


def test_names_are_escaped() -> None:
    page = page_of(build.ODD_NAMES.result())
    assert build.NASTY in page.text
    assert "日本.png" in page.text
    assert '"><img src=x>' in page.text
    assert "<script" not in page.source
    assert "<img src=x" not in page.source


def test_no_word_promises_too_much(case: build.Case) -> None:
    page = page_of(case.result())
    said = [page.text, *(a.get("alt") or "" for a in page.all("img"))]
    for text in said:
        assert not re.search(r"\b(safe|private|compliant|anonymous)\b", text, re.I)


def test_personal_data_is_announced_where_it_is_shown() -> None:
    assert "Personal data" in page_of(build.LEAKS.result()).text
    assert "Personal data" not in page_of(build.NOT_RUN.result()).text
    assert "Personal data" not in page_of(build.LEAKS.result(redaction="all")).text


def test_causes_come_with_a_remedy() -> None:
    result = build.INCONCLUSIVE.result()
    page = page_of(result)
    assert len(result.verdict.causes) == 2
    for cause in result.verdict.causes:
        assert cause.remedy in page.text
    assert "2 causes" in page.text


def test_none_found_needs_a_census() -> None:
    empty = build.inventory(census=True).model_copy(update={"stochastic": []})
    unseen = empty.model_copy(update={"census": False})
    said = page_of(build.LEAKS.result(inventory=empty)).text
    assert "None found: every random draw" in said
    said = page_of(build.LEAKS.result(inventory=unseen)).text
    assert "Not examined." in said
    assert "None found" not in said


def test_gallery_is_bounded_worst_first_and_says_so() -> None:
    page = page_of(build.MANY.result())
    rows = [h for h in page.heading("h3") if re.match(r"Image \d+ photo", h)]
    assert len(rows) == 40
    assert rows[0].startswith("Image 99 ")
    assert rows[39].startswith("Image 60 ")
    assert "40 of 100 images shown, 60 omitted; worst first by SSIM." in page.text


def test_leak_count_is_that_of_the_images() -> None:
    assert "rebuild 57 of the 100 images audited" in page_of(build.MANY.result()).text


def test_attack_table_counts_forms_and_identical_pictures(leaking: AuditResult) -> None:
    text = page_of(leaking).text
    assert "bias × 2, patch embedding × 1" in text
    assert "bias 2 of 3 the layer has no bias (× 1)" in text
    assert "tokens 0 of 3 no token layout (× 3)" in text
    assert "PSNR (dB) 3 18.40 18.40 18.40 1 0" in text
    assert "superseded: an exact attack has solved every image" in text


def test_chart_has_title_description_limit_and_table(leaking: AuditResult) -> None:
    page = page_of(leaking)
    chart = page.source.split('<svg class="chart"')[1].split("</svg>")[0]
    assert "SSIM of 3 images</title>" in chart
    assert "1 of 3 beyond it" in chart
    assert chart.count('class="mark-beyond"') == 1
    assert chart.count('class="mark-within"') == 2
    assert "limit 0.5000" in chart
    assert "unrelated pairs, 95 %: 0.2100" in chart
    assert "The same as a table" in page.text


def test_rule_of_three_and_strength_of_a_clean_result() -> None:
    text = page_of(build.CLEAN.result()).text
    assert "Strong: every attack" in text
    assert "no leak in 3 images means, with 95 % confidence, that at most 100 %" in text
    assert "Rule of three" not in page_of(build.LEAKS.result()).text


def test_missing_pictures_are_named_and_break_nothing() -> None:
    result = AuditResult(build.LEAKS.result().record, ImageStore())
    page = page_of(result)
    assert page.all("img") == []
    assert page.text.count("image not available") == 2 + 1 + 9 + 4
    assert "Personal data" not in page.text


@pytest.mark.parametrize("data", [b"", b"no png", b"\x89PNG\r\n\x1a\n"])
def test_damaged_pictures_count_as_missing(data: bytes) -> None:
    files = {**build.LEAKS.images(), "images/0-original.png": data}
    result = AuditResult(build.LEAKS.result().record, ImageStore(files))
    assert page_of(result).text.count("image not available") == 2


def test_unscored_images_and_short_lists_are_shown_as_they_are() -> None:
    first = build.LEAKS.result().record.attacks[0]
    short = first.model_copy(update={"images": first.images[:1], "outcomes": []})
    page = page_of(build.LEAKS.result(attacks=[short]))
    assert page.text.count("image not available") == 2
    unscored = replace(build.LEAKS, ssim=(0.4, None)).result()
    assert "not finite" in page_of(unscored).text


def test_images_without_reconstruction_are_counted() -> None:
    attack = replace(build.LEAKS, ssim=(0.7,)).result().record.attacks[0]
    text = page_of(build.LEAKS.result(attacks=[attack, build.superseded()])).text
    assert "1 of 3 images shown, 0 omitted; by SSIM. 2 without a" in text


def test_an_audit_of_nothing_still_has_a_page() -> None:
    result = replace(build.LEAKS, ssim=()).result(ladder=[], unrelated_image=None)
    page = page_of(result)
    assert page.heading("h1") == ["Not run"]
    assert page.all("img") == []
    assert "0 images given, none audited" in page.text


def test_inferred_labels_change_the_threat_model() -> None:
    config = AuditConfig(knowledge=Knowledge(labels="inferred"))
    text = page_of(build.LEAKS.result(config=config)).text
    assert "labels inferred" in text
    assert "knowledge.labels inferred given" in text


def test_the_page_names_the_mode_when_masks_are_unknown() -> None:
    unknown = "Dropout masks Unknown to the attacker, who reads them off the gradient"
    result = build.LEAKS.result()
    assert unknown in page_of(result).text
    first = result.record.attacks[0]
    evidence = first.evidence.model_copy(update={"diagnostic": True})
    given = [first.model_copy(update={"evidence": evidence})]
    page = page_of(build.LEAKS.result(attacks=given))
    assert f"Given only to {evidence.label}, which never decides" in page.text
    still = build.inventory(True).model_copy(update={"stochastic": []})
    page = page_of(build.LEAKS.result(inventory=still))
    assert "Dropout masks The client draws none." in page.text


def test_the_noise_floor_of_reduced_precision_is_shown() -> None:
    assert "Noise floor" not in page_of(build.LEAKS.result()).text
    rounded = build.preflight().model_copy(update={"noise_floor": 0.0412})
    config = AuditConfig(client=Client(autocast="bfloat16"))
    text = page_of(build.LEAKS.result(preflight=rounded, config=config)).text
    assert "Noise floor of reduced precision 0.0412" in text
    assert "in train mode, under autocast to bfloat16." in text


def test_an_attack_with_more_than_an_attacker_has_never_counts() -> None:
    result = build.LEAKS.result()
    first = result.record.attacks[0]
    evidence = first.evidence.model_copy(update={"diagnostic": True})
    only = [first.model_copy(update={"evidence": evidence})]
    page = page_of(build.LEAKS.result(attacks=only))
    assert "Pictures" not in page.heading("h2")
    assert "exact diagnostic: uses what no attacker has no" in page.text


def test_details_hold_nothing_that_is_nowhere_else(leaking: AuditResult) -> None:
    source = page_of(leaking).source
    bare = Page(re.sub(r"<details>.*?</details>", "", source, flags=re.S))
    for value in ("0.9100", "0.3400", "0.4200", "tolerance = 0.0001"):
        assert value in bare.text


def test_unknown_names_in_templates_are_errors(leaking: AuditResult) -> None:
    from jinja2 import UndefinedError

    from privaudit.report.page import _template_folders

    environment = _environment(_template_folders())
    assert environment.autoescape is True
    with pytest.raises(UndefinedError, match="missing"):
        environment.from_string("{{ missing }}").render()


def test_labels_optimised_with_the_images_have_a_page(leaking: AuditResult) -> None:
    knows = {"knowledge": Knowledge(labels="joint")}
    config = leaking.record.config.model_copy(update=knows)
    record = leaking.record.model_copy(update={"config": config})
    text = page_of(AuditResult(record, ImageStore())).text
    assert "labels optimised with the images" in text
    assert "Optimised by the attacker, together with the images." in text


def test_an_image_that_leaks_by_another_metric_is_never_within_the_limit() -> None:
    """SSIM far below its limit, MS-SSIM beyond its own: the page says so."""
    case = build.Case(ssim=(0.1, 0.1, 0.1))
    solver = case.result().record.attacks[0]
    scores = {**solver.evidence.scores, "ms_ssim": [Score(value=0.9)] * 3}
    evidence = solver.evidence.model_copy(update={"scores": scores})
    other = case.result().record.attacks[1:]
    result = case.result(
        attacks=[solver.model_copy(update={"evidence": evidence}), *other]
    )
    found = facts.leakiest(result.record)
    assert [(one.beyond, one.leaks) for one in found] == [(False, True)] * 3
    assert page_of(result).text.count("beyond the limit") >= 3
