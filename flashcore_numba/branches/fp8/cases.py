"""The inputs on which attention in 8 bits is checked: tiles, masks, groups, layouts, and sizes of numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np

from flashcore_numba.checks.cases import LARGEST_V, normal
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core.element import BFLOAT16, FLOAT16, Element
from flashcore_numba.core.operation import Case
from flashcore_numba.stages import Stage

# Checked in every type and head dimension that a stage serves; the other cases depend on neither.
EVERYWHERE = ("ragged 33 rows", "causal 300 rows, 700 keys", "a negative scale", "outliers", "extreme")


def cases(stage: Stage, full_size: bool) -> list[Case]:
    """Every sample case, the cheap and telling ones first."""
    found = []
    for element in stage.elements:
        for d in stage.head_dims:
            first = element is FLOAT16 and d == stage.head_dims[0]
            ending = "" if first else f", D={d}" + ("" if element is FLOAT16 else f", {element.name}")
            for name, make, layout in (*_shapes(d, element), *_numbers(d, element)):
                if first or name.startswith(EVERYWHERE):
                    found.append(Case(name + ending, make, layout=layout))
    if full_size:
        found += [Case("4096 rows and keys", lambda rng: outliers(rng, 1, 4, 4096, 4096, 128))]
        found += [Case("131072 keys, mean of V 1", lambda rng: mean_of_one(rng, 131072, 128, FLOAT16))]
        found += [Case("131072 keys, one dominates", lambda rng: needle(rng, 131072, 128, FLOAT16))]
    return found


def _shapes(d: int, element: Element) -> list[tuple[str, Callable, str]]:
    def case(name: str, *shape: int, layout: str = "inside", **options: Any) -> tuple[str, Callable, str]:
        return name, lambda rng: normal(rng, *shape, element=element, **options), layout

    return [
        case("ragged 33 rows, 270 keys, two heads, two batches", 2, 2, 33, 270, d, layout="mixed"),
        case("causal 300 rows, 700 keys, 2 heads on 1", 1, 2, 300, 700, d, 1, causal=True),
        case("causal 300 rows, 100 keys: rows that see none", 1, 1, 300, 100, d, causal=True),
        case("128 rows, 128 keys", 1, 1, 128, 128, d, layout="contiguous"),
        case("one row, one key", 1, 1, 1, 1, d),
        case("129 keys", 1, 1, 64, 129, d),
        case("grouped queries, 6 heads on 2, two batches", 2, 6, 40, 200, d, 2),
        case("causal 130 rows, 130 keys", 1, 1, 130, 130, d, causal=True, layout="contiguous"),
        case("transposed layout [B, S, H, D]", 2, 3, 70, 140, d, layout="transposed"),
        case("a negative scale", 1, 1, 70, 300, d, scale=-0.2),
        case("a scale of 0", 1, 1, 20, 150, d, scale=0.0),
        case("a scale of 1", 1, 1, 70, 300, d, scale=1.0),
    ]


def _numbers(d: int, element: Element) -> list[tuple[str, Callable, str]]:
    def case(name: str, make: Callable[[np.random.Generator], Inputs]) -> tuple[str, Callable, str]:
        return name, make, "inside"

    def sized(rng: np.random.Generator, q: float = 1, k: float = 1, v: float = 1) -> Inputs:
        x = normal(rng, 1, 1, 40, 300, d, element=element)
        sizes = zip("qkv", (q, k, v), strict=True)
        return x.but(
            **{name: element.round(size * getattr(x, name).astype(np.float64)) for name, size in sizes}
        )

    def tiles_of_v(rng: np.random.Generator) -> Inputs:
        """Values that differ from tile to tile of 128 by powers of 2, the first tile zeros."""
        x = normal(rng, 1, 1, 70, 520, d, element=element)
        size = np.repeat([0, *2.0 ** rng.permutation([-9, -2, 0, 6])], 128)[:520, None]
        return x.but(v=element.round(x.v * size))

    def small_beside_zeros(rng: np.random.Generator) -> Inputs:
        """The range of P must follow the tile that has numbers."""
        x = normal(rng, 1, 1, 70, 384, d, element=element)
        size = np.repeat(rng.permutation([0.01, 0.01, 0]), 128)[:, None]
        return x.but(v=element.round(x.v * size))

    def tiles_of_k(rng: np.random.Generator) -> Inputs:
        x = normal(rng, 1, 1, 70, 520, d, element=element)
        size = np.repeat([1, *2.0 ** rng.permutation([-6, -1, 0, 1])], 128)[:520, None]
        return x.but(k=element.round(x.k * size))

    def zero_rows(rng: np.random.Generator) -> Inputs:
        x = normal(rng, 1, 2, 70, 300, d, element=element)
        q, k, v = x.q.copy(), x.k.copy(), x.v.copy()
        q[:, :, ::3], k[:, :, 128:256], v[:, :, :128] = 0, 0, 0
        return x.but(q=q, k=k, v=v)

    def hidden_are_larger(rng: np.random.Generator) -> Inputs:
        """In the last tile of a row the largest scores are those of keys that it must not see."""
        return along(rng, np.linspace(-1.5, 1, 300), d, element).but(causal=True)

    def below_zero(rng: np.random.Generator) -> Inputs:
        x = normal(rng, 1, 1, 40, 300, d, element=element)
        return x.but(v=element.round(-1000 * np.abs(x.v.astype(np.float64))))

    largest = LARGEST_V[element]
    # Below what a scale or an exponent reaches, where a quotient or a power of 2 would not be finite.
    tiny = [
        case("extreme: values about 10^-36", lambda rng: sized(rng, v=1e-36)),
        case("extreme: q and k about 10^-38", lambda rng: sized(rng, q=1e-38, k=1e-38)),
    ]
    return [
        *(tiny if element is BFLOAT16 else []),
        case("outliers", lambda rng: outliers(rng, 1, 1, 70, 300, d, element)),
        case("scores rise towards the first key", lambda rng: along(rng, np.linspace(1, 0, 700), d, element)),
        case("scores rise slowly", lambda rng: along(rng, np.linspace(0.3, 0, 700), d, element)),
        case("scores rise towards the last key", lambda rng: along(rng, np.linspace(0, 1, 700), d, element)),
        case("causal, hidden keys have larger scores", hidden_are_larger),
        case("2048 keys, mean of V 1", lambda rng: mean_of_one(rng, 2048, d, element)),
        case("one key dominates", lambda rng: needle(rng, 700, d, element)),
        case("tiles of V of many sizes", tiles_of_v),
        case("tiles of K of many sizes", tiles_of_k),
        case("values about 0.01, and a tile of zeros", small_beside_zeros),
        case("values far below 0", below_zero),
        case("all of V -7: bytes of -448", lambda rng: normal_with_v(rng, -7.0, d, element)),
        case("rows of zeros", zero_rows),
        case("q and k of zeros", lambda rng: sized(rng, q=0, k=0)),
        case("q of zeros", lambda rng: sized(rng, q=0)),
        case("v of zeros", lambda rng: sized(rng, v=0)),
        case("extreme: scores about 100", lambda rng: sized(rng, q=30)),
        case("extreme: scores about 10^6", lambda rng: sized(rng, q=1e3, k=1e3)),
        case("extreme: scores about 10^8", lambda rng: sized(rng, q=1e4, k=1e4)),
        case("extreme: q and k about 10^-4", lambda rng: sized(rng, q=1e-4, k=1e-4)),
        case("extreme: values about 10^-5", lambda rng: sized(rng, v=1e-5)),
        case(f"extreme: values up to {largest:g}", lambda rng: sized(rng, v=largest / 6)),
    ]


def normal_with_v(rng: np.random.Generator, value: float, d: int, element: Element) -> Inputs:
    """All of V one number."""
    x = normal(rng, 1, 1, 40, 300, d, element=element)
    return x.but(v=np.full_like(x.v, value))


def outliers(
    rng: np.random.Generator,
    batch: int,
    heads: int,
    rows: int,
    keys: int,
    d: int,
    element: Element = FLOAT16,
    share: float = 1e-3,
) -> Inputs:
    """N(0, 1), and to `share` of the numbers another N(0, 10^2) is added (Shah et al. 2024, FlashAttention-3,
    section 4.3).
    """

    def draw(length: int) -> np.ndarray:
        shape = (batch, heads, length, d)
        rare = rng.random(shape) < share
        return element.round(rng.standard_normal(shape) + 10 * rare * rng.standard_normal(shape))

    return Inputs(draw(rows), draw(keys), draw(keys))


def along(rng: np.random.Generator, weight: np.ndarray, d: int, element: Element) -> Inputs:
    """Scores that follow `weight` [S_k], about 50 where it is 1."""
    x, direction = normal(rng, 1, 1, 70, len(weight), d, element=element), rng.standard_normal(d)
    direction *= np.sqrt(50 * np.sqrt(d)) / np.linalg.norm(direction)
    k = 0.3 * x.k + np.outer(weight, direction)
    return x.but(q=element.round(0.3 * x.q + direction), k=element.round(k))


def mean_of_one(rng: np.random.Generator, keys: int, d: int, element: Element) -> Inputs:
    """Values around 1 and nearly equal weights: what sums lose, they all lose in one direction."""
    x = normal(rng, 1, 1, 64, keys, d, element=element)
    return x.but(q=element.round(0.5 * x.q), v=element.round(1 + 0.1 * x.v))


def needle(rng: np.random.Generator, keys: int, d: int, element: Element) -> Inputs:
    """Each row is 1.5 times one of the keys, whose score is about 17 at D = 128."""
    x = normal(rng, 1, 1, 64, keys, d, element=element)
    return x.but(q=element.round(1.5 * x.k[:, :, rng.integers(0, keys, 64)]))
