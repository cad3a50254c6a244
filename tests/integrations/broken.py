"""Adapters with a mistake planted, which the tests of the adapter must notice."""

import itertools
import sys
from pathlib import Path
from types import ModuleType

import pytest

_numbers = itertools.count()


def broken(module: ModuleType, *edits: tuple[str, str]) -> ModuleType:
    """The module with each (old, new) replaced where it occurs, once, under a name of its own."""
    text = Path(module.__file__).read_text()
    for old, new in edits:
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {module.__name__}"
        text = text.replace(old, new)
    name = f"{module.__name__}_broken{next(_numbers)}"
    found = ModuleType(name)
    found.__file__ = module.__file__
    sys.modules[name] = found
    exec(compile(text, module.__file__, "exec"), found.__dict__)
    return found


def must_notice(check, adapter: ModuleType, error: type[Exception] = AssertionError) -> None:
    """Whether `check(adapter)` fails: by an assertion, unless the mistake brings about another error."""
    with pytest.raises(error):
        check(adapter)
