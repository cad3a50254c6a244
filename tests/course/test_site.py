"""The lessons as a static site: built anew, then every page looked at in a browser, from the disk alone."""

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest

from flashcore_numba.course import lessons

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120
BUILD_SECONDS = 900  # every lesson's wrong answer and its repair are judged
NARROW = 390
# What a page refers to and what it holds, once its formulas are drawn.
LOOK = """async () => {
  if (window.MathJax) await MathJax.startup.promise;
  const every = (what) => [...document.querySelectorAll(what)];
  await Promise.allSettled(every("img").map((image) => image.decode()));
  return {
    links: every("a[href]").map((link) => link.href),
    ids: every("[id]").map((element) => element.id),
    missing: every("img").filter((image) => !image.naturalWidth).map((image) => image.alt || image.src),
    silent: every("article img:not([alt])").length,
    undrawn: every(".math:not(:has(mjx-container)), mjx-merror").map((formula) => formula.textContent),
    formulas: every("mjx-container").length,
  };
}"""

pytestmark = [pytest.mark.browser, pytest.mark.timeout(2 * BUILD_SECONDS + 2 * SECONDS)]  # one may wait


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The folder of the site, built as `make site` does, once for all processes of pytest."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "site"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        if not (folder / "built").exists():
            _build(folder)
            (folder / "built").touch()
    return folder / "out"


def _build(folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "-j",
        "2",
        "-c",
        "site",
        "-d",
        folder / "trees",
        ".",
        folder / "out",
    ]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_SECONDS)
    assert built.returncode == 0, built.stdout + built.stderr


@pytest.fixture
def axe():
    """Finds what a page lacks for those who cannot see it, or have no mouse."""
    from axe_playwright_python.sync_playwright import Axe  # of the extra dev, as playwright

    return Axe()


def opened(browser, scheme: str = "light", width: int = 1280):
    """A page of the browser, and the list that gets what goes wrong on it."""
    viewport = {"width": width, "height": 800}
    page, wrong = browser.new_context(color_scheme=scheme, viewport=viewport).new_page(), []
    page.on("console", lambda said: said.type in ("error", "warning") and wrong.append(said.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda request: wrong.append(request.url[:200]))
    page.on("request", lambda request: request.url.startswith("http") and wrong.append(request.url))
    return page, wrong


def test_every_page_is_whole(browser, site):
    page, wrong = opened(browser)
    found = {}
    for file in pages(site):
        page.goto(file.as_uri())
        found[file] = page.evaluate(LOOK)
        assert not wrong, f"{file}: {wrong}"
    assert {f"{lesson.file}.html" for lesson in lessons.LESSONS.values()} < {file.name for file in found}
    for file, has in found.items():
        assert not has["missing"] and not has["silent"] and not has["undrawn"], (file, has)
        if file.parent.name == "notebooks":
            assert has["formulas"], file
        for link in filter(lambda link: link.startswith("file:"), has["links"]):
            address, anchor = urldefrag(link)
            target = Path(unquote(urlparse(address).path))
            assert target.is_file(), f"{file}: {target} does not exist"
            assert not anchor or unquote(anchor) in found[target]["ids"], (
                f"{file}: {link} is no place of its page"
            )


def pages(site: Path) -> list[Path]:
    """All but the one that leads to another at once."""
    return sorted(set(site.rglob("*.html")) - {site / "index.html"})


@pytest.mark.parametrize(
    "scheme, width, share", [("light", 1280, 1), ("dark", 1280, 4), ("light", NARROW, 4)]
)
def test_axe_finds_nothing(scheme, width, share, browser, axe, site, rng):
    """On every page, and on one in four, others in each run, in other colours and in a narrow window."""
    page, _ = opened(browser, scheme, width)
    found = []
    for file in pages(site)[rng.integers(share) :: share]:
        page.goto(file.as_uri() + "?q=barrier" * (file.name == "search.html"))
        page.evaluate("window.MathJax?.startup.promise")
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        for violation in axe.run(page).response["violations"]:
            places = [node["html"][:160] for node in violation["nodes"][:3]]
            found.append((file.name, violation["id"], violation["impact"], places))
    assert not found, found


def test_axe_would_find_something(browser, axe):
    page, _ = opened(browser)
    page.set_content(
        "<html lang=en><title>t</title><main><h1>t</h1><img src=x><p style='color:#aaa'>grey</p>"
    )
    assert {each["id"] for each in axe.run(page).response["violations"]} >= {"image-alt", "color-contrast"}


def test_home_leads_to_the_first_lesson(browser, site):
    page, wrong = opened(browser)
    page.goto((site / "index.html").as_uri())
    page.wait_for_url("**/home.html")
    article = page.locator("article")
    for heading in ("For whom", "What you can do at the end"):
        assert article.get_by_role("heading", name=heading).count() == 1
    assert article.get_by_role("link").filter(has_text=re.compile(r"^\d\d ")).count() == len(lessons.LESSONS)
    article.get_by_role("link", name="Start lesson 00").click()
    page.wait_for_url("**/notebooks/00_three_loops.html")
    assert not wrong, wrong


def test_every_lesson_shows_a_failure_its_reply_and_the_pass(browser, site):
    page, _ = opened(browser)
    for lesson in lessons.EVERY.values():
        page.goto((site / f"notebooks/{lesson.file}.html").as_uri())
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        text = page.locator("article").inner_text()
        called = lesson.name.capitalize() or f"Lesson {lesson.number:02d}"
        _, failed, after = text.partition(f"✗ {called}: not yet")
        reply, repair, then = after.partition("The mistake, and its repair")
        assert failed and repair and f"✓ {called}: passed" in then, lesson.key
        assert len(reply.split()) > 20, reply
        removed, added = page.locator(".highlight-diff .gd"), page.locator(".highlight-diff .gi")
        assert removed.count() + added.count() > 0, "the repair changes nothing"
        for empty in (
            "still empty",
            "predicted 0 of",
            "You made no prediction",
            "not answered",
            "nothing is written",
        ):
            assert empty not in text, (lesson.file, empty)
        for question in lesson.questions:
            assert page.locator("summary > code").get_by_text(question.key, exact=True).count() == 1


def test_the_search_quotes_what_it_finds(browser, site):
    page, wrong = opened(browser)
    page.goto((site / "site/home.html").as_uri())
    page.get_by_role("textbox", name="Search").first.fill("Butterfly shuffle")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=*")
    results = page.locator("#search-results li")
    assert re.match(r"\d+ sections? with ", page.get_by_role("status").inner_text()) and results.count()
    for result in results.all():
        marks = {mark.lower() for mark in result.locator("mark").all_inner_texts()}
        assert marks <= {"butterfly", "shuffle"} and marks
        assert result.locator("p").inner_text() and result.locator(".search-page").inner_text()
    found = results.filter(has=page.locator("a[href*='03_warp_reduction']")).first
    assert "butterfly" in found.locator("p mark").all_inner_texts()[0].lower()
    found.get_by_role("link").click()
    page.wait_for_url("**/notebooks/03_warp_reduction.html#*")
    anchor = page.evaluate("document.getElementById(location.hash.slice(1)).innerText")
    assert "butterfly" in anchor.lower()
    page.goto(f"{(site / 'search.html').as_uri()}?q=xylophone<>")
    assert page.get_by_role("status").inner_text() == "Nothing has “xylophone<>”."
    assert page.locator("#search-results li").count() == 0
    assert not wrong, wrong


def test_the_keyboard_reaches_everything_and_is_seen(browser, site):
    page, _ = opened(browser)
    page.goto((site / "notebooks/05_online_softmax.html").as_uri())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText.trim()") == "Skip to content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('article') !== null"), "past the sidebar"
    seen = set()
    for _ in range(600):
        outline, key = page.evaluate(
            "(() => { const e = document.activeElement, s = getComputedStyle(e);"
            " return [s.outlineStyle + s.outlineWidth + s.boxShadow, e.outerHTML.slice(0, 80)]; })()"
        )
        if key.startswith("<body"):
            break
        assert outline not in ("none0pxnone", "none3pxnone"), f"nothing shows the focus on {key}"
        seen.add(key)
        page.keyboard.press("Tab")
    else:
        pytest.fail("the focus never leaves the page")
    assert any(key.startswith("<summary") for key in seen) and len(seen) > 20


def test_a_narrow_window_has_its_drawers_by_keyboard(browser, site):
    page, _ = opened(browser, width=NARROW)
    page.goto((site / "docs/tools.html").as_uri())
    button = page.get_by_role("button", name="Pages")
    link = page.locator(".sidebar-drawer").get_by_role("link", name="Glossary")
    assert not link.is_visible() and button.get_attribute("aria-expanded") == "false"
    button.focus()
    page.keyboard.press("Enter")
    link.wait_for(state="visible")
    assert button.get_attribute("aria-expanded") == "true"
    page.keyboard.press("Escape")
    link.wait_for(state="hidden")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Pages"
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"the page is {wide} pixels wider than the window"


def test_the_footer_names_the_owner_and_the_licences(browser, site):
    page, _ = opened(browser)
    for file in pages(site):
        page.goto(file.as_uri())
        footer = page.locator("footer").last.inner_text()
        assert re.search(r"Copyright © 20\d\d The FlashCore authors", footer), (file, footer)
        assert "Apache License 2.0" in footer and "CC BY 4.0" in footer


def test_an_appendix_follows_its_lesson(site):
    sidebar = (site / "site/home.html").read_text()
    for path in (ROOT / "lessons").glob("appendix_*.md"):
        lesson = lessons.find(path.stem[9:11])
        at = [sidebar.index(f"{name}.html") for name in (lesson.file, path.stem)]
        later = [sidebar.find(f"{other.file}.html", at[1]) for other in lessons.LESSONS.values()]
        assert at[0] < at[1] and sum(place > 0 for place in later) >= len(lessons.LESSONS) - lesson.number - 1


@pytest.mark.parametrize("scheme, other", [("light", "dark"), ("dark", "light")])
def test_light_and_dark(scheme, other, browser, site):
    page, wrong = opened(browser, scheme)
    page.goto((site / "README.html").as_uri())

    def looks() -> str:
        shown = [picture for picture in page.locator("article img").all() if picture.is_visible()]
        files = {"dark" if "-dark" in picture.get_attribute("src") else "light" for picture in shown}
        body = page.locator("body")
        paper, ink = (
            sum(map(int, re.findall(r"\d+", body.evaluate(f"e => getComputedStyle(e).{part}"))[:3]))
            for part in ("backgroundColor", "color")
        )
        assert files == {"dark" if paper < ink else "light"} and abs(paper - ink) > 400, (files, paper, ink)
        return files.pop()

    assert looks() == scheme
    for _ in range(3):  # the button goes through light, dark and the system's
        page.get_by_role("button", name="Toggle Light / Dark / Auto color theme").last.click()
        if looks() == other:
            break
    else:
        pytest.fail(f"the button never shows the {other} page")
    assert not wrong, wrong
