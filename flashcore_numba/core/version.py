"""Which version of the distribution this is."""

from importlib.metadata import PackageNotFoundError, version


def _version() -> str:
    try:
        return version("flashcore-numba")
    except PackageNotFoundError:  # a source tree that is not installed
        return "0+unknown"


VERSION = _version()
