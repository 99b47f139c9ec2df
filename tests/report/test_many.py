"""A thousand images: bounded pages, bounded memory, and every value in the record."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from privaudit.report import facts
from privaudit.report.page import render_paper
from privaudit.result import AuditResult, ImageStore
from tests.report import build
from tests.report.pdfs import Paper, needs_weasyprint
from tests.report.reading import Page, page_of

ROOT = Path(__file__).parents[2]
COUNT = 1000
GIBIBYTE = 2**20
"""In the KiB that Linux counts in."""
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class Noise(ImageStore):
    """224 × 224 noise made when asked for: what a folder would give."""

    asked: int = 0

    def get(self, name: str | None) -> bytes | None:
        self.asked += 1
        seed = sum(map(ord, name or ""))
        noise = Image.frombytes("RGB", (224, 224), _bytes(seed))
        return build.as_png(noise)


def _bytes(seed: int) -> bytes:
    return random.Random(seed).randbytes(224 * 224 * 3)


def case() -> build.Case:
    return build.Case(ssim=[0.2 + 0.0007 * ((37 * i) % COUNT) for i in range(COUNT)])


def titles(page: Page) -> list[int]:
    found = (re.match(r"Image (\d+) photo", text) for text in page.heading("h3"))
    return [int(match[1]) for match in found if match]


def test_pdf_shows_worst_best_and_some_at_random_and_says_so() -> None:
    result = case().result()
    page = Page(render_paper(result.record, result.images))
    shown = titles(page)
    ranked = [one.sample.index for one in facts.leakiest(result.record)]
    assert len(shown) == len(set(shown)) == 45
    assert shown[:20] == ranked[:20]
    assert shown[-5:] == ranked[-5:]
    drawn = [ranked.index(i) for i in shown[20:40]]
    assert drawn == sorted(drawn)
    assert max(drawn) - min(drawn) > 400
    said = (
        "45 of 1,000 images shown: the 20 worst, the 5 best and 20 drawn at random; "
        "955 omitted. Every value is in the attached result.json."
    )
    assert page.text.count(said) == 2
    assert said.replace("images", "values") in page.text


def test_the_draw_goes_by_the_seed_of_the_audit() -> None:
    result = case().result()
    found = facts.leakiest(result.record)
    one = facts.on_paper(result.record, found)
    assert facts.on_paper(result.record, found) == one
    config = result.record.config.model_copy(update={"seed": 1})
    other = facts.on_paper(result.record.model_copy(update={"config": config}), found)
    assert other[:20] == one[:20]
    assert other[20:40] != one[20:40]


def test_few_images_are_all_shown() -> None:
    result = build.Case(ssim=[0.3 + 0.01 * i for i in range(45)]).result()
    page = Page(render_paper(result.record, result.images))
    assert len(titles(page)) == 45
    assert "45 of 45 images shown, 0 omitted" in page.text
    assert "drawn at random" not in page.text


def test_only_pictures_that_are_shown_are_read() -> None:
    store = Noise()
    html = page_of(AuditResult(case().result().record, store))
    assert "40 of 1,000 images shown, 960 omitted" in html.text
    assert store.asked < 3 * 40 + 20


MEASURE = """
import json, resource, sys, time, warnings
from privaudit.result import AuditResult
from tests.report import test_many
warnings.simplefilter("ignore")
result = AuditResult(test_many.case().result().record, test_many.Noise())
started = time.monotonic()
result.save(sys.argv[1])
taken = time.monotonic() - started
# ru_maxrss of this process would count the parent that it was forked from.
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
own = int(status["VmHWM"].split()[0])
child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(json.dumps([own, child, taken]))
"""


def measured(target: Path) -> tuple[int, int, float]:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(target)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    own, child, seconds = json.loads(done.stdout)
    return own, child, seconds


@on_linux
def test_a_thousand_images_stay_small_as_html(tmp_path: Path) -> None:
    own, _, seconds = measured(tmp_path / "r.html")
    assert own < GIBIBYTE / 2
    assert seconds < 60
    assert (tmp_path / "r.html").stat().st_size < 40e6


@on_linux
@pytest.mark.slow
@needs_weasyprint
def test_a_thousand_images_stay_small_as_pdf(tmp_path: Path) -> None:
    own, child, seconds = measured(tmp_path / "r.pdf")
    assert own < GIBIBYTE / 2
    assert child < GIBIBYTE
    assert seconds < 240
    paper = Paper((tmp_path / "r.pdf").read_bytes())
    (attached,) = paper.reader.attachments["result.json"]
    scores = json.loads(attached)["attacks"][0]["evidence"]["scores"]["ssim"]
    assert len(scores) == COUNT
    assert "955 omitted" in paper.text
