"""Showing that long work goes on: a live line on a terminal, plain lines elsewhere."""

from rich.console import Console
from rich.markup import escape


class Progress:
    """Reports steps and counted parts on a console, which is stderr's: results go to stdout."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = console.status("starting") if console.is_terminal else None

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._live.stop()

    def step(self, text: str) -> None:
        """Say what is being done now."""
        if self._live:
            self._live.update(escape(text))
        else:
            self.console.print(text, markup=False, soft_wrap=True)

    def count(self, text: str, done: int, total: int, what: str) -> None:
        """Say that `done` of `total` parts are done, the last being `what`; in a log about ten times."""
        if self._live or done == total or done % max(1, total // 10) == 0:
            self.step(f"{text} {done}/{total}: {what}")
