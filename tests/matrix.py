"""Which cells of a matrix `make test` runs; the others carry the marker `long`, for `make test-all`, which
draws a fifth of them.
"""

from collections.abc import Callable, Hashable, Iterable

import pytest
from _pytest.mark import ParameterSet

__all__ = ["few", "first_of_each"]


def few(values: Iterable[object], *kept: object) -> list[ParameterSet]:
    """`values` as parameters, all of them long but those that are named."""
    parameters = [_parameter(value) for value in values]
    wanted = [_parameter(value).values for value in kept]
    for value in wanted:
        if not any(parameter.values == value for parameter in parameters):
            raise ValueError(f"{value} is none of the values: {[p.values for p in parameters]}")
    return [p if p.values in wanted else _long(p) for p in parameters]


def first_of_each(values: Iterable[object], kind: Callable[..., Hashable]) -> list[ParameterSet]:
    """`values` as parameters, all of them long but the first of each `kind(value)`."""
    seen: set[Hashable] = set()
    parameters = []
    for parameter in map(_parameter, values):
        own = kind(*parameter.values)
        parameters.append(_long(parameter) if own in seen else parameter)
        seen.add(own)
    return parameters


def _parameter(value: object) -> ParameterSet:
    if isinstance(value, ParameterSet):
        return value
    return pytest.param(*value) if isinstance(value, tuple) else pytest.param(value)


def _long(parameter: ParameterSet) -> ParameterSet:
    return pytest.param(*parameter.values, marks=(*parameter.marks, pytest.mark.long), id=parameter.id)
