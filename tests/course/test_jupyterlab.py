"""A lesson in real JupyterLab in a browser: run all cells, look at them, write the answer, see it pass."""

import json
import os
import re
import shutil
import socket
import subprocess
import textwrap
import time
import urllib.request
from pathlib import Path

import pytest

from flashcore_numba.course import exercise, lessons
from flashcore_numba.course.session import lab

ROOT = Path(__file__).resolve().parents[2]
NUMBER = 2
# Windowing would keep cells outside the viewport out of the page; news would ask the network.
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
START_SECONDS, RUN_SECONDS = 60, 120

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]


@pytest.fixture
def server(tmp_path):
    """(address, the notebook's file) of a JupyterLab of its own, in a clone with lessons and notebooks."""
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in ("lessons", "notebooks"):
        shutil.copytree(ROOT / name, clone / name)
    notebook, _ = lab.working_copy(clone, NUMBER)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = [
        "--no-browser",
        "--IdentityProvider.token=",
        f"--ServerApp.port={port}",
        "--ServerApp.ip=127.0.0.1",
    ]
    homes = {name: str(tmp_path / name) for name in ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR")}
    homes |= {"XDG_DATA_HOME": str(tmp_path / "data"), "JUPYTER_DATA_DIR": str(tmp_path / "jupyter")}
    for name, values in SETTINGS.items():
        file = tmp_path / "settings/@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    homes["JUPYTERLAB_SETTINGS_DIR"] = str(tmp_path / "settings")
    command = lab.command(clone, notebook, quiet)
    log = (tmp_path / "log").open("w+")
    process = subprocess.Popen(command, env=os.environ | homes, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                urllib.request.urlopen(f"{address}/api/status", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
                time.sleep(0.3)
        yield address, notebook
    finally:
        process.terminate()
        process.wait(30)
        log.close()


def wait_until_idle(page, cells: int) -> None:
    """Every code cell has run: a number stands in its prompt, and no star."""
    prompts = page.locator(".jp-CodeCell .jp-InputPrompt")
    deadline = time.monotonic() + RUN_SECONDS
    while True:
        texts = prompts.all_inner_texts()
        if len(texts) == cells and all(re.search(r"\d", text) for text in texts):
            return
        assert time.monotonic() < deadline, texts
        page.wait_for_timeout(300)


def cell_with(page, text: str):
    """The first code cell whose source has `text`."""
    return page.locator(".jp-CodeCell").filter(has=page.locator(".cm-content", has_text=text)).first


def tree(clone: Path) -> dict[str, bytes]:
    """Every file and folder of the lessons and notebooks, with what is in it."""
    every = [path for name in ("lessons", "notebooks") for path in (clone / name).rglob("*")]
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in every}


def test_reading_and_saving_leave_the_lessons_as_they_are(server, browser):
    address, notebook = server
    clone = notebook.parents[1]
    before = tree(clone)
    page = browser.new_context(viewport={"width": 1400, "height": 1000}).new_page()
    page.goto(f"{address}/lab/tree/lessons/glossary.md")
    page.locator(".jp-FileEditor .cm-content, .jp-MarkdownViewer").first.wait_for(timeout=60_000)
    page.goto(f"{address}/lab/tree/notebooks/{notebook.name}")
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    page.locator(".jp-CodeCell .cm-content").first.click()
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Control+s")
    page.wait_for_timeout(3000)
    dialog = page.get_by_role("dialog")
    assert "read-only" in (dialog.first.inner_text() if dialog.count() else page.inner_text("body")).lower()
    assert tree(clone) == before


def test_a_lesson_from_the_first_cell_to_the_pass(server, browser):
    address, notebook = server
    cells = [c for c in json.loads(notebook.read_text())["cells"] if c["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells)
    page = browser.new_context(viewport={"width": 1400, "height": 1000}).new_page()
    page.goto(f"{address}/lab/tree/{lab.FOLDER}/{notebook.name}")
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    wait_until_idle(page, len(cells))

    outputs = page.locator(".jp-OutputArea-output")
    assert page.locator('[data-mime-type="application/vnd.jupyter.error"]').count() == 0
    assert page.locator('[data-mime-type="application/vnd.jupyter.stderr"]').count() == 0
    assert "<!--" not in page.locator(".jp-Notebook").inner_text()
    captions = outputs.locator("table caption").all_inner_texts()
    assert "Questions" in captions and any("NVIDIA H200" in caption for caption in captions), captions
    assert "not yet: the region is still empty" in cell_with(page, "course.check()").inner_text()
    pictures = outputs.locator("img")
    drawn = [(p.get_attribute("alt"), p.evaluate("e => e.naturalWidth")) for p in pictures.all()]
    assert drawn and all(len(alt) > 40 and width > 300 for alt, width in drawn), drawn

    stepped = outputs.locator("[data-flashcore-figure][role=group]").first
    first = stepped.locator("[data-caption]").inner_text()
    stepped.focus()
    page.keyboard.press("ArrowRight")
    second = stepped.locator("[data-caption]").inner_text()
    assert first.startswith("step 1 of") and second.startswith("step 2 of")
    assert page.locator(".jp-Notebook.jp-mod-editMode").count() == 0

    solution = textwrap.dedent(exercise.region(lessons.find(NUMBER).exercise).text)
    cell_with(page, "%%write").locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(f"%%write {NUMBER}\n{solution}")
    page.keyboard.press("Shift+Enter")
    check = cell_with(page, "course.check()")
    check.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    check.get_by_text(f"Lesson {NUMBER:02d}: passed").wait_for(timeout=60_000)
    watch = cell_with(page, "course.watch(")
    watch.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    watch.get_by_text("your kernel").first.wait_for(timeout=60_000)
