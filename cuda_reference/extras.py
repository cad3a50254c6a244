"""What is not installed, and the command that installs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shlex import quote

EXTRAS = {
    **dict.fromkeys(("cuda", "jsonschema", "llvmlite", "ml_dtypes", "numba", "platformdirs", "rich"), ""),
    **dict.fromkeys(("matplotlib", "PIL"), "pictures"),
    **dict.fromkeys(("IPython", "ipykernel", "jupyterlab", "jupytext", "nbclient", "nbformat"), "notebooks"),
    "cupy": "cuda13",
    "openevolve": "evolve",
    "torch": "peers",
}
"""Package as it is imported -> the extra that brings it; empty for what the distribution itself needs."""


class MissingPackageError(ModuleNotFoundError):
    """A package is not installed: the message has the command that installs it."""


def install(extra: str = "") -> str:
    """The command that installs the distribution with an extra, or with its own dependencies alone.

    Where it is not installed it names the source tree, because no index has the distribution.
    """
    try:
        version(name := "flashcore-numba")
    except PackageNotFoundError:
        name = str(Path(__file__).parents[1])
    return f"pip install {quote(f'{name}[{extra}]' if extra else name)}"


@contextmanager
def explained() -> Iterator[None]:
    """What is imported here may be missing: raises MissingPackageError for a package of `EXTRAS`."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if isinstance(error, MissingPackageError) or package not in EXTRAS:
            raise
        message = f"the package {package} is not installed: {install(EXTRAS[package])}"
        raise MissingPackageError(message, name=error.name) from error
