"""The same loop in Numba and in CUDA C, line beside line: a step of the softmax, then the product with V."""

import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda, float32

from cuda_reference import INCLUDE
from flashcore_numba import stages
from flashcore_numba.course.evidence import COUNTED
from flashcore_numba.course.exercise import region, source_text
from flashcore_numba.course.figures.canvas import lettered, paper, png, short
from flashcore_numba.course.figures.cuda import launched
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.course.launches import recorded
from flashcore_numba.simulator import simulate
from flashcore_numba.stages import Stage
from flashcore_numba.wide import load4, load8

KEYS, LD, S_LD = 32, 72, 40
WARP_TILES = 128  # warps times tiles of stage 07 at 1x1x128x64
WIDTH, ROW = 10.8, 0.215  # inches
LEFT, RIGHT = 0.012, 0.465
BAND = "#EEF2F6"

# (a text of stage 06's line, a text of tile.cuh's, what the pair does)
SOFTMAX = (
    ("m_new = m[r]", "float m_new = s[0];", "begin"),
    ("m_new = max(m_new, s_rmem[r, j])", "m_new = fmaxf(m_new, s[i]);", "the thread's own scores"),
    ("m_new = row_max(m_new)", "m_new = fmaxf(m, row_max(m_new));", "the other lanes, by shuffles"),
    ("m_ref = m_new if", "const float m_ref = m_new", "no key seen yet"),
    ("rescale = math.exp(m[r] - m_ref)", "rescale = ptx::ex2(m - m_ref)", "what the old sums shrink by"),
    ("p = math.exp(s_rmem[r, j] - m_ref)", "s[i] = ptx::ex2(s[i] - m_ref)", "the weights"),
    ("m[r] = m_new", "    m = m_new;", "remember"),
)


@cuda.jit
def twin(p_tile, v_tile, row_of_lane, part_of_lane, out):
    """P V of 4 rows by one warp: a lane owns 8 columns of one row, those that the arrays say."""
    p_smem = cuda.shared.array((4, S_LD), float32, alignment=16)
    v_smem = cuda.shared.array((KEYS, LD), np.float16, alignment=16)
    lane = cuda.threadIdx.x
    for row in range(4):
        p_smem[row, lane] = p_tile[row, lane]
    for key in range(KEYS):
        v_smem[key, lane], v_smem[key, lane + 32] = v_tile[key, lane], v_tile[key, lane + 32]
    cuda.syncwarp()  # P and V are whole

    row, part = row_of_lane[lane], part_of_lane[lane]
    o = cuda.local.array(8, float32)
    for c in range(8):
        o[c] = 0
    for key in range(0, KEYS, 4):
        p = load4(p_smem, (row, key))  # the weights of 4 keys
        for i in range(4):
            v = load8(v_smem, (key + i, 8 * part))  # 8 components of one key
            for c in range(8):
                o[c] += p[i] * v[c]
    for c in range(8):
        out[row, 8 * part + c] = o[c]


def counted(row: np.ndarray, part: np.ndarray) -> dict[str, tuple[int, int]]:
    """(requests, wavefronts) of the twin's loads of `p_smem` and `v_smem`: one warp, one tile of 32 keys.

    row, part: [32], the row of P (0 to 3) and the eight components (0 to 7) of each lane.
    """
    arrays = np.ones((4, KEYS), np.float32), np.ones((KEYS, 64), np.float16)
    lines = simulate(twin, 1, 32, *arrays, row, part, np.zeros((4, 64), np.float32)).lines()
    loads = [line for line in lines if line.space == "shared" and line.op == "load"]
    return {
        name: (
            sum(line.requests for line in loads if f"({name}," in line.text),
            sum(line.wavefronts for line in loads if f"({name}," in line.text),
        )
        for name in ("p_smem", "v_smem")
    }


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """Frame 1: one step of the online softmax in stage 06 and in `tile.cuh`. Frame 2: the exercise's loop."""
    return Figure(
        f"The same loop in Numba and in CUDA C: {whose}", (_softmax(), _product(lesson, stage, whose))
    )


def _softmax() -> Frame:
    numba = Path(stages.__file__).parent / "stage06_register_tiles.py"
    pairs = [(_line(numba, left), _line(INCLUDE / "tile.cuh", right), what) for left, right, what in SOFTMAX]
    picture, axes = _sheet(2 * len(pairs), "stage06_register_tiles.py", "tile.cuh")
    for n, (left, right, what) in enumerate(pairs):
        if n % 2 == 0:
            axes.axhspan(2 * n, 2 * n + 2, color=BAND, lw=0)
        axes.text(LEFT, 2 * n + 0.55, what, fontsize=8.5, style="italic", color="#555555", va="center")
        _code(axes, LEFT, 2 * n + 1.3, left)
        _code(axes, RIGHT, 2 * n + 1.3, right)
    listed = "; ".join(f"{what}: {left} | {right}" for left, right, what in pairs)
    caption = "One step of the online softmax: the same names, in the same order, in both languages."
    return Frame(png(picture), caption, f"{caption} {listed}.")


def _product(lesson: Any, stage: Stage, whose: str) -> Frame:
    lane = np.arange(32)
    left, right = counted(lane // 8, lane % 8), _of_kernel(stage)
    numba = _source_of_loop()
    mine = (
        _region_of(lesson, stage)
        if whose.startswith("your")
        else ["// the body of the loop", "// over key: yours"]
    )
    rows = max(len(numba), len(mine))
    picture, axes = _sheet(rows + 4.2, "the twin", whose)
    for n, line in enumerate(numba):
        _code(axes, LEFT, n + 0.6, line)
    for n, line in enumerate(mine):
        _code(axes, RIGHT, n + 0.6, line)
    axes.axhspan(rows + 0.4, rows + 4.2, color=BAND, lw=0)
    heads = ("counted by the simulator, a warp and tile", "counted by the executor, a warp and tile")
    for x, text in zip((LEFT, RIGHT), heads, strict=True):
        axes.text(x, rows + 1.0, text, fontsize=8.5, style="italic", color="#555555", va="center")
    total = tuple(sum(column) for column in zip(*left.values(), strict=True))
    said = [f"loads of P and V: {a:g} requests, {b:g} wavefronts" for a, b in (total, right)]
    parts = [
        f"{what}: {left[name][0]} and {left[name][1]}" for name, what in (("p_smem", "P"), ("v_smem", "V"))
    ]
    for x, text in zip((LEFT, RIGHT), said, strict=True):
        axes.text(x, rows + 2.1, text, fontsize=10.5, weight="bold", va="center")
    axes.text(LEFT, rows + 3.2, ", ".join(parts), fontsize=9.5, va="center")
    verdict = "the same requests" if total == right else "not the same requests"
    caption = (
        f"P V, four keys per iteration, in two languages: {verdict}. Numba: {said[0]}; CUDA C: {said[1]}, "
        "for a warp and a tile."
    )
    return Frame(png(picture), caption, f"{caption} The Numba loop: {' / '.join(map(str.strip, numba))}.")


def _of_kernel(stage: Stage) -> tuple[float, float]:
    """(requests, wavefronts) of the loads of P and V by lanes, a warp and tile: all loads of shared memory
    but those of fragments and of S, which `load_scores` reads.
    """
    requests = wavefronts = 0
    for launch in launched(stage):
        for row in launch.lines():
            others = "load_matrix_sync" in row.text or "s_row + column" in row.text
            if row.op == "load" and row.space == "shared" and not others:
                requests += row.requests
                wavefronts += row.wavefronts
    return requests / WARP_TILES, wavefronts / WARP_TILES


def source_of(kernel: Any) -> list[str]:
    """The lines of a Numba kernel's body behind its docstring, without comments."""
    body = textwrap.dedent(inspect.getsource(kernel.py_func).rpartition('"""\n')[2])
    return [re.sub(r" *# .*", "", line) for line in body.splitlines()]


def _source_of_loop() -> list[str]:
    lines = source_of(twin)
    first = next(n for n, line in enumerate(lines) if "for key in range(0" in line)
    return lines[first : next(n for n, line in enumerate(lines) if "o[c] += " in line) + 1]


def _region_of(lesson: Any, stage: Stage) -> list[str]:
    """The region's lines in the stage's own copy of the file."""
    asked = region(lesson.exercise)
    whole = source_text(lesson.exercise.file).splitlines()
    after = len(whole) - (asked.first_line - 1) - len(asked.text.splitlines())
    has = recorded(stage, lesson.exercise.variant, COUNTED).sources[0].text().splitlines()
    mine = [line for line in has[asked.first_line - 1 : len(has) - after] if not line.startswith("#")]
    return textwrap.dedent("\n".join(mine)).splitlines()


def _line(path: Path, text: str) -> str:
    """The one line with `text`, without its comment. Raises ValueError where there is none or several."""
    found = [line for line in path.read_text().splitlines() if text in line]
    if len(found) != 1:
        raise ValueError(f"{path.name}: {len(found)} lines have {text!r}")
    return re.sub(r"\s*(//|# ).*", "", found[0]).strip()


def _sheet(rows: float, left: str, right: str) -> tuple[Any, Any]:
    """A sheet of so many rows in two columns with their headings."""
    picture = paper(WIDTH, ROW * (rows + 1.6))
    axes = picture.add_axes((0.0, 0.01, 1.0, 0.98))
    axes.set_xlim(0, 1)
    axes.set_ylim(rows, -1.6)
    axes.axis("off")
    for x, text in ((LEFT, f"Numba: {left}"), (RIGHT, f"CUDA C: {right}")):
        axes.text(x, -0.9, text, fontsize=10.5, weight="bold", va="center")
    axes.plot([RIGHT - 0.012] * 2, [-1.4, rows], color="#888888", lw=0.7)
    return picture, axes


def _code(axes: Any, x: float, y: float, text: str) -> None:
    indent = len(text) - len(text.lstrip())
    axes.text(
        x + 0.0078 * indent, y, short(text.strip(), 66), family="DejaVu Sans Mono", fontsize=9, va="center"
    )
