"""The lessons as a static site: built anew, then every page looked at in a browser, from the disk alone."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest

from flashcore_numba.course import lessons

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120
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

pytestmark = [pytest.mark.browser, pytest.mark.timeout(2 * SECONDS)]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The folder of the site, built as `make site` does."""
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "-c",
        "site",
        "-d",
        folder / "trees",
        ".",
        folder / "out",
    ]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "out"


def opened(browser, scheme: str = "light"):
    """A page of the browser, and the list that gets what goes wrong on it."""
    page, wrong = browser.new_context(color_scheme=scheme).new_page(), []
    page.on("console", lambda said: said.type in ("error", "warning") and wrong.append(said.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda request: wrong.append(request.url[:200]))
    page.on("request", lambda request: request.url.startswith("http") and wrong.append(request.url))
    return page, wrong


def test_every_page_is_whole(browser, site):
    page, wrong = opened(browser)
    found = {}
    for file in sorted(set(site.rglob("*.html")) - {site / "index.html"}):  # which leads to another at once
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


def test_the_search_finds_a_word(browser, site):
    page, wrong = opened(browser)
    page.goto((site / "index.html").as_uri())
    page.wait_for_url("**/README.html")
    page.get_by_role("textbox", name="Search").first.fill("butterfly")
    page.keyboard.press("Enter")
    result = page.locator("#search-results li a", has_text="A warp a row").first
    result.click()
    page.wait_for_url("**/notebooks/03_warp_reduction.html*")
    assert "butterfly" in page.locator("article").inner_text().lower()
    assert not wrong, wrong


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
