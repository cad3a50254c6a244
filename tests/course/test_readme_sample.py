"""The README shows what the checker really says."""

import re

from .readme_sample import PLACE, README, written


def test_the_readme_quotes_the_checker() -> None:
    page = README.read_text()
    (place,) = PLACE.finditer(page)
    assert written(page) == page, "python -m course.readme_sample, in tests/"
    shown = page[place.start() : place.end()]
    assert re.search(r"line \d+ of your answer", " ".join(shown.split())), "the sample names no line"
    assert written(page.replace(shown, f"{place[1]}```text\nLesson 05: passed\n```\n")) == page
