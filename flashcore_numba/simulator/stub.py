"""Names that mean something only inside a kernel."""

from typing import Any


class KernelName:
    """Stands for a name of `numba.cuda` where Numba is absent; the rewriter gives it its meaning."""

    def __init__(self, path: str, *members: str) -> None:
        self._path = path
        for member in members:
            setattr(self, member, KernelName(f"{path}.{member}"))

    @property
    def path(self) -> str:
        """The name below `numba.cuda`."""
        return self._path

    def __repr__(self) -> str:
        return f"cuda.{self.path}"

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        raise TypeError(f"{self!r} is called outside a kernel: it has a meaning only in a @cuda.jit function")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{self!r} has no {name} here: outside a kernel it has no value, and in one the simulator says "
            "what it does not know"
        )
