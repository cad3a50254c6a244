"""The inputs on which the kernel is checked."""

from typing import Any

import numpy as np

from flashcore_numba.branches.prepare.inputs import PrepareInputs, drawn
from flashcore_numba.core.element import E4M3, FLOAT16, Element
from flashcore_numba.core.operation import Case

SIZES: dict[str, tuple[int, int, int, int]] = {  # tokens, H, H_kv, D
    "one token, D = 128": (1, 4, 2, 128),
    "37 tokens, D = 64": (37, 4, 2, 64),
    "7 tokens, 9 heads on 3, D = 256": (7, 9, 3, 256),
    "11 tokens, one K/V head, D = 128": (11, 8, 1, 128),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "padding": {"padding": 9},
    "padding alone": {"padding": 13},
    "page 1": {"page": 1},
    "page 7": {"page": 7},
    "slots as int32": {"slots": np.int32, "padding": 2},
    "R = 16": {"rotated": 16},
    "R = 48": {"rotated": 48, "page": 32},
    "interleaved": {"interleaved": True},
    "interleaved, R = 32": {"interleaved": True, "rotated": 32, "padding": 3},
    "no RoPE": {"rotated": 0},
    "no norm": {"norm_eps": None},
    "no weights, a large eps": {"weights": False, "norm_eps": 0.5},
    "neither norm nor RoPE": {"rotated": 0, "norm_eps": None, "padding": 2},
}
_HEADS = np.array([0.013, 0.027], np.float32)  # a scale of each of two heads
_STORED: dict[str, dict[str, Any]] = {
    "one scale": {"k_scale": 0.02, "v_scale": 0.03},
    "a scale of each head, padding": {
        "k_scale": _HEADS,
        "v_scale": 2 * _HEADS[::-1].copy(),
        "padding": 3,
    },
    "most numbers too large": {"k_scale": 1e-3, "v_scale": 1e-3},
    "most numbers subnormal": {"k_scale": 80.0, "v_scale": 100.0},
    "neither norm nor RoPE": {"rotated": 0, "norm_eps": None, "k_scale": 0.3, "v_scale": 0.1},
    "interleaved, R = 32": {"interleaved": True, "rotated": 32, "page": 7, "v_scale": 0.1},
}
OPTIONS |= {f"e4m3, {name}": {"stored": E4M3, **options} for name, options in _STORED.items()}
LAYOUTS = ("inside", "transposed", "mixed", "contiguous")


def cases(stage: Any, full_size: bool) -> list[Case]:
    """Every case, in all element types that the stage serves."""
    return [case for element in stage.elements for case in _of(element, full_size)]


def _of(element: Element, full_size: bool) -> list[Case]:
    ending = "" if element is FLOAT16 else f", {element.name}"

    def case(number: int, name: str, *size: int, **options: Any) -> Case:
        def make(rng: np.random.Generator) -> PrepareInputs:
            return drawn(rng, *size, element=element, **options)

        return Case(name + ending, make, layout=LAYOUTS[number % len(LAYOUTS)])

    found = [case(number, name, *size) for number, (name, size) in enumerate(SIZES.items())]
    dims = (64, 128) if element is FLOAT16 else (128, 64)
    found += [
        case(number, f"{name}, D = {dims[number % 2]}", 13, 6, 2, dims[number % 2], **options)
        for number, (name, options) in enumerate(OPTIONS.items())
    ]
    if full_size:
        found.append(case(1, "4000 tokens, 32 heads on 8", 4000, 32, 8, 128, padding=100, positions=9000))
        found.append(case(2, "16 tokens, 64 heads on 8", 16, 64, 8, 128, pages=5000, positions=9000))
    return found
