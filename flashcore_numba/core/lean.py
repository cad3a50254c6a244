"""Imports without what nobody here uses of them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

GRAMMARS = "rfc3987_syntax"


@contextmanager
def no_iri_grammars() -> Iterator[None]:
    """Inside, jsonschema is imported without the formats iri and iri-reference, which no schema here names.

    Jupyter brings a package for them that compiles 38 grammars as it is imported: 2.8 of the 3.0 s that
    jsonschema then takes. A process that has imported either before keeps what it has.
    """
    if GRAMMARS in sys.modules:
        yield
        return
    sys.modules[GRAMMARS] = None  # type: ignore[assignment]  # an import of it raises ImportError
    try:
        yield
    finally:
        sys.modules.pop(GRAMMARS, None)
