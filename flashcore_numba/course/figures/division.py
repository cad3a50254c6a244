"""How a stage divides a problem: who owns which elements, where the tiles live, and the walk over the keys.

The numbers are the stage's own: what it would launch at one shape, the names of its launcher's module or of
its `.cu` file at the macros of that launch, and the shared memory that its kernel declares. What they mean,
for example that a warp owns a row, is said here, once for each stage.
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flashcore_numba.core.element import FLOAT16
from flashcore_numba.core.shapes import Shape, parse
from flashcore_numba.course import launches, memory_map
from flashcore_numba.course.evidence import MISSION
from flashcore_numba.course.figures.recording import WARP, record
from flashcore_numba.stages import Stage

SHAPES = {15: "4x32x4096x64"}  # of a stage that is made for longer problems than the mission
GLOBAL, SHARED, REGISTERS = "global", "shared", "registers"
LOAD, MULTIPLY, SOFTMAX, MERGE = "load", "multiply", "softmax", "merge"
HALF, FLOAT, DOUBLE = FLOAT16.dtype.itemsize, 4, 8  # bytes
TURNS = 3  # of a walk that are shown


@dataclass(frozen=True, eq=False)
class Owners:
    """Which thread of the block has which element of a matrix, in each of its sheets [rows, columns].

    `matrix`: "S", "P", "O" or several. `columns`: what they are. Where `lanes` is false, as in a fragment of
    WMMA, only the warp of a thread is known.
    """

    matrix: str
    columns: str
    sheets: tuple[np.ndarray, ...]
    lanes: bool = True

    @property
    def warps(self) -> list[int]:
        return sorted({int(warp) for sheet in self.sheets for warp in np.unique(sheet // WARP)})

    @property
    def one_lane(self) -> int:
        """The thread with the lowest number that has any element."""
        return min(int(sheet.min()) for sheet in self.sheets)

    @property
    def per_lane(self) -> int:
        """Elements that a lane has; those of a fragment are dealt out evenly."""
        if self.lanes:
            return sum(int((sheet == self.one_lane).sum()) for sheet in self.sheets)
        return sum(int((sheet // WARP == self.one_lane // WARP).sum()) for sheet in self.sheets) // WARP


@dataclass(frozen=True)
class Place:
    """A matrix in one memory. `bytes`: of a head in global memory, of a block in shared memory, of a lane in
    registers. `over`: the matrix whose memory it takes, where it has none of its own.
    """

    matrix: str
    memory: str
    what: str
    bytes: int
    over: str = ""


@dataclass(frozen=True)
class Op:
    """One operation, from one place in the program's order to another; `row`: where it is drawn."""

    row: str
    kind: str
    text: str
    start: float
    stop: float


@dataclass(frozen=True)
class Walk:
    """The first turns of a block's walk over the keys.

    tile: keys of a K/V tile. passes: what each walk over all keys is for. loads: who brings a tile, and where
    to. barriers: where all threads of the block meet. skips: where the rest of a pass is left out.
    """

    tile: int
    passes: tuple[str, ...]
    loads: str
    ops: tuple[Op, ...]
    barriers: tuple[float, ...] = ()
    skips: tuple[float, ...] = ()
    backwards: bool = False


@dataclass(frozen=True, eq=False)
class Division:
    """How a stage divides a problem. `rows`: query rows of a block, or of a cluster of blocks; `owners`: in
    the order of the algorithm; `shared_bytes`: of a block.
    """

    stage: Stage
    shape: Shape
    rows: int
    owners: tuple[Owners, ...]
    places: tuple[Place, ...]
    walk: Walk
    grid: tuple[int, ...] = ()
    cluster: int = 1
    warps: int = 0
    shared_bytes: int = 0

    @property
    def row_tiles(self) -> int:
        """Pieces into which the query rows of a head are cut."""
        return -(-self.shape.seq // self.rows)

    @property
    def tiles(self) -> int:
        """K/V tiles of a head."""
        return -(-self.shape.seq // self.walk.tile)


def of(stage: Stage) -> Division:
    """How the stage divides the mission's shape, or the one in `SHAPES`.

    Raises ValueError for a stage that is not described here, and what the simulator raises for a kernel in
    Numba that it cannot run.
    """
    if stage.number not in DESCRIPTIONS:
        raise ValueError(
            f"stage {stage.label} is not described; those that are: {', '.join(map(str, DESCRIPTIONS))}"
        )
    return DESCRIPTIONS[stage.number](stage)


class Facts:
    """The numbers of a stage's first launch: `n` has those of its source by name. `places` collects where
    the matrices are.
    """

    def __init__(self, stage: Stage) -> None:
        shape = SHAPES.get(stage.place, MISSION)
        run = launches.recorded(stage, None, shape)
        self.stage, self.shape, self.launch = stage, parse(shape), run.launches[0]
        self.dim, self.seq = self.shape.head_dim, self.shape.seq
        self.warps = math.prod(self.launch.block) // WARP
        if stage.language == "CUDA C":
            parts = memory_map.parts(self.launch.kernel, self.launch.shared_bytes)
            self.n: Mapping[str, Any] = memory_map.constants(self.launch.kernel)
            self.shared = {part.name: part.bytes for part in parts}
            self.shared_bytes = sum(part.bytes for part in parts if not part.over)
        else:
            self.n = inspect.unwrap(stage.launch).__globals__
            counters = [launch.counter for launch in record(stage).launches]
            self.shared = {name: size for each in counters for (name, _), size in each.shared_bytes.items()}
            self.shared_bytes = sum(self.shared.values())
        self.places = [self._head(matrix, self.dim, HALF) for matrix in "QKVO"]
        for asked, dtype in run.asked_for:
            if asked[2:] == (self.seq, self.seq):  # S, by rows or by columns
                self.places += [
                    self._head("S", self.seq, dtype.itemsize),
                    self._head("P", self.seq, dtype.itemsize, "S"),
                ]

    def _head(self, matrix: str, columns: int, size: int, over: str = "") -> Place:
        return Place(matrix, GLOBAL, f"[{self.seq}, {columns}]", self.seq * columns * size, over)

    def share(self, matrix: str, shape: Sequence[Any], *arrays: str, over: str = "") -> None:
        """A matrix is in these arrays of shared memory."""
        size = sum(self.shared[name] for name in arrays)
        self.places.append(Place(matrix, SHARED, f"[{', '.join(map(str, shape))}]", size, over))

    def keep(self, matrix: str, elements: int, size: int = FLOAT) -> None:
        """A lane has so many elements in registers."""
        word = {HALF: "half", FLOAT: "float"}[size]
        word = {"half": "halves"}.get(word, f"{word}s") if elements > 1 else word
        self.places.append(Place(matrix, REGISTERS, f"{elements} {word}", elements * size))

    def division(self, rows: int, owners: Sequence[Owners], walk: Walk, cluster: int = 1) -> Division:
        return Division(
            self.stage,
            self.shape,
            rows,
            tuple(owners),
            tuple(self.places),
            walk,
            self.launch.grid,
            cluster,
            self.warps,
            self.shared_bytes,
        )


# The owners: a matrix of threads, from the indices of its rows and columns.

Owner = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _threads(rows: int, columns: int, owner: Owner) -> np.ndarray:
    return np.broadcast_to(owner(*np.indices((rows, columns))), (rows, columns))


def _fragments(rows: int, columns: int, across: int) -> np.ndarray:
    """Parts of 16 x 16 dealt to warps, `across` of them side by side."""
    return _threads(rows, columns, lambda r, c: WARP * (r // 16 * across + c // 16 % across))


def _quad_lane(r: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The lane that has an element of a result of mma or wgmma."""
    return 4 * (r % 8) + c % 8 // 2


def _eight_lanes(r: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The thread of a softmax by 8 lanes per row, each with 4 neighbouring scores of every 32."""
    return 8 * r + c % 32 // 4


# The walk: what happens at one place of the program, and the barriers after it.


@dataclass(frozen=True)
class Work:
    """An operation of every iteration; `first` and `step`: of which tile in iteration 0, and then."""

    row: str
    kind: str
    matrix: str
    first: int = 0
    step: int = 1

    def op(self, turn: int, start: float, stop: float) -> Op:
        return Op(self.row, self.kind, f"{self.matrix} {self.first + self.step * turn}", start, stop)


Phase = tuple[tuple[Work, ...], int]
K, V = Work("load K", LOAD, "K"), Work("load V", LOAD, "V")
SCORES, WEIGHTS = Work("S = Q K\u1d40", MULTIPLY, "S"), Work("P = softmax", SOFTMAX, "P")
OUTPUT = Work("O += P V", MULTIPLY, "O")
CLOSE = 0.12  # between barriers that follow each other


def _in_turn(turns: int, *phases: Phase, first: float = 0.0) -> tuple[list[Op], list[float]]:
    """Every tile passes through the phases before the next one is touched."""
    ops, barriers, at = [], [], first
    for turn in range(turns):
        for works, meetings in phases:
            ops += [work.op(turn, at, at + 1) for work in works]
            at += 1
            barriers += [at + CLOSE * n for n in range(meetings)]
    return ops, barriers


def _passes(tile: int, loads: str, passes: Mapping[str, Sequence[Phase]]) -> Walk:
    """Several walks over all keys, of which the first two tiles are shown."""
    ops: list[Op] = []
    barriers: list[float] = []
    skips = []
    for phases in passes.values():
        start = ops[-1].stop + 0.9 if ops else 0.0
        more, meetings = _in_turn(2, *phases, first=start)
        ops, barriers = ops + more, barriers + meetings
        skips.append(ops[-1].stop + 0.45)
    return Walk(tile, tuple(passes), loads, tuple(ops), tuple(barriers), tuple(skips))


def _one_pass(tile: int, loads: str, *phases: Phase) -> Walk:
    return _passes(tile, loads, {"S, P and O": phases})


def _ring(
    tile: int,
    loads: str,
    slots: int,
    *phases: Phase,
    head: int,
    bring: Sequence[Work] = (K, V),
    ahead: bool = True,
) -> Walk:
    """One walk, with copies of later tiles under way: from when a tile's slot is free until its turn.

    head: barriers at the head of a turn. ahead: the last slot is filled from the first turn on; else all are
    filled from the beginning.
    """
    length = len(phases)
    ops, barriers = _in_turn(TURNS, *phases, first=1.0)
    for turn in range(TURNS):
        after = bool(turn) * phases[-1][1]
        barriers += [1.0 + turn * length + CLOSE * (n + after) for n in range(head)]
    end = 1.0 + TURNS * length
    for number in range(TURNS + slots):
        free = 1.0 + (number - slots + 1) * length
        start = 0.0 if number < slots - ahead else free
        ops += [work.op(number, start, min(end, 1.0 + number * length)) for work in bring if start < end]
    ops = [op for op in ops if op.start < op.stop]
    return Walk(tile, ("S, P and O",), loads, tuple(ops), tuple(sorted(barriers)), (end + 0.45,))


# The stages


def _three_loops(stage: Stage) -> Division:
    shape = parse(MISSION)
    rows, dim = shape.seq, shape.head_dim
    places = [Place(matrix, GLOBAL, f"[{rows}, {dim}]", rows * dim * DOUBLE) for matrix in "QKVO"]
    places += [Place(matrix, GLOBAL, f"[{rows}]", rows * DOUBLE) for matrix in "SP"]
    loops = {"scores": [((SCORES,), 0)], "softmax": [((WEIGHTS,), 0)], "weighted sum": [((OUTPUT,), 0)]}
    return Division(stage, shape, 1, (), tuple(places), _passes(1, "", loops))


def _a_lane_a_row(stage: Stage) -> Division:
    f = Facts(stage)
    rows = f.n["ROWS"]
    weights = Owners("S and P", "keys, one after the other", (_threads(rows, WARP, lambda r, c: r),))
    output = Owners("O", "components", (_threads(rows, f.dim, lambda r, c: r),))
    if stage.number == 1:
        passes: dict[str, Sequence[Phase]] = {
            "S, and its maximum": [((K, SCORES), 0)],
            "P": [((WEIGHTS,), 0)],
            "O": [((V, OUTPUT), 0)],
        }
    else:
        f.keep("Q", f.dim)
        passes = {"S, and its maximum": [((K, SCORES), 0)], "P and O": [((V, WEIGHTS, OUTPUT), 0)]}
    f.keep("O", output.per_lane)
    f.keep("m, l", 2)
    return f.division(rows, (weights, output), _passes(1, "each lane for itself, into registers", passes))


def _warp_reduction(stage: Stage) -> Division:
    f = Facts(stage)
    rows, lanes = f.n["WARPS"], f.n["LANES"]
    weights = Owners("S and P", "keys", (_threads(rows, lanes, lambda r, c: lanes * r + c),))
    output = Owners(
        "O", "components", (_threads(rows, f.dim, lambda r, c: lanes * r + c % (2 * lanes) // 2),)
    )
    f.keep("Q", output.per_lane)
    f.keep("S", 1)
    f.keep("P", 1)
    f.keep("O", output.per_lane)
    f.keep("m, l", 2)
    passes: dict[str, Sequence[Phase]] = {
        "S, and its maximum": [((K, SCORES), 0)],
        "P and O": [((V, WEIGHTS, OUTPUT), 0)],
    }
    return f.division(rows, (weights, output), _passes(1, "a warp together, into registers", passes))


def _a_warp_a_row(stage: Stage) -> Division:
    f = Facts(stage)
    rows, keys, dim = f.n["ROWS"], f.n["KEYS"], f.dim
    weights = Owners("S and P", "keys of a tile", (_threads(rows, keys, lambda r, c: keys * r + c),))
    output = Owners("O", "components", (_threads(rows, dim, lambda r, c: keys * r + c % keys),))
    f.share("Q", (rows, dim), "q_smem")
    if stage.number == 4:
        f.share("K", (keys, dim), "kv_smem")
        f.share("V", (keys, dim), "kv_smem", over="K")
        passes: dict[str, Sequence[Phase]] = {
            "S, and its maximum": [((K,), 1), ((SCORES,), 1)],
            "P and O": [((V, WEIGHTS), 1), ((OUTPUT,), 1)],
        }
    else:
        f.share("K", (keys, dim), "k_smem")
        f.share("V", (keys, dim), "v_smem")
        passes = {"S, P and O": [((K, V), 1), ((SCORES,), 0), ((WEIGHTS,), 0), ((OUTPUT,), 1)]}
    f.share("P", (rows, keys), "p_smem")
    f.keep("S", weights.per_lane)
    f.keep("O", output.per_lane)
    f.keep("m, l", 2)
    return f.division(rows, (weights, output), _passes(keys, "all warps, into shared memory", passes))


def _register_tiles(stage: Stage) -> Division:
    f = Facts(stage)
    warps, keys = f.n["SHAPE"][f.dim]
    tall, across, dim = f.n["TM"], f.n["COLS"], f.dim  # rows of a thread, threads side by side
    rows = 2 * tall * warps

    def thread(r: np.ndarray, column: np.ndarray) -> np.ndarray:
        return WARP * (r // tall // 2) + 2 * column + r // tall % 2

    weights = Owners("S and P", "keys of a tile", (_threads(rows, keys, lambda r, c: thread(r, c % across)),))
    output = Owners("O", "components", (_threads(rows, dim, lambda r, c: thread(r, c % (4 * across) // 4)),))
    f.share("Q", (rows, dim), "q_smem")
    f.share("K", (keys, dim), "k_smem")
    f.share("V", (keys, dim), "v_smem")
    f.share("P", (rows, keys), "k_smem", over="K")
    f.keep("S", weights.per_lane)
    f.keep("O", output.per_lane)
    f.keep("m, l", 2 * tall)
    phases = ((K, V), 1), ((SCORES,), 1), ((WEIGHTS,), 0), ((OUTPUT,), 1)
    return f.division(rows, (weights, output), _one_pass(keys, "all warps, into shared memory", *phases))


def _wmma(stage: Stage) -> Division:
    """Stages 07 to 10: parts of S and O are dealt to warps, rows of P to lanes."""
    f = Facts(stage)
    rows, keys, dim = f.n["ROWS"], f.n["KEYS"], f.dim
    scores = Owners("S", "keys of a tile", (_fragments(rows, keys, keys // 16),), lanes=False)
    weights = Owners("P", "keys of a tile", (_threads(rows, keys, _eight_lanes),))
    if stage.number == 7:
        output = Owners("O", "components", (_threads(rows, dim, lambda r, c: 8 * r + c // 8),))
    else:
        output = Owners("O", "components", (_fragments(rows, dim, 4),), lanes=False)
    slots = f.n.get("BUFFERS", f.n.get("STAGES", 1))
    ring = (slots,) if slots > 1 else ()
    f.share("Q", (rows, dim), "q_smem")
    f.share("K", (*ring, keys, dim), "k_smem")
    f.share("V", (*ring, keys, dim), "v_smem")
    f.share("S", (rows, keys), "s_smem")
    if stage.number == 7:
        f.share("P", (rows, keys), "s_smem", over="S")
        f.keep("O", output.per_lane)
    else:
        f.share("P", (rows, keys), "p_smem")
        f.share("O", (rows, dim), "o_smem")
    if stage.number == 9:
        f.share("m, l", (2, rows), "m_smem", "l_smem")
    else:
        f.keep("m, l", 2)
    owners = (scores, weights, output)
    if slots == 1:
        meets = int(stage.number != 7)  # there a warp has the same rows of P and of O
        phases = ((K, V), 1), ((SCORES,), 1), ((WEIGHTS,), meets), ((OUTPUT,), 1)
        return f.division(rows, owners, _one_pass(keys, "all warps, into shared memory", *phases))
    f.keep("Q", dim * 16 // WARP, HALF)
    in_turn = ((SCORES,), 1), ((WEIGHTS,), 1), ((OUTPUT,), 1)
    loads = f"cp.async by all warps, {slots} slots in shared memory"
    return f.division(rows, owners, _ring(keys, loads, slots, *in_turn, head=1))


def _warp_specialized(stage: Stage) -> Division:
    f = Facts(stage)
    rows, keys, dim, slots, buffers, ahead = (
        f.n[x] for x in ("ROWS", "KEYS", "D", "SLOTS", "BUFFERS", "AHEAD")
    )
    first, lane_rows = f.n["FIRST_SOFTMAX_WARP"], f.n["LANE_ROWS"]

    def softmax(r: np.ndarray, c: np.ndarray) -> np.ndarray:
        return WARP * (first + r // 8) + r % 8 // lane_rows * 8 + c % 32 // 4

    scores = Owners("S", "keys of a tile", (_fragments(rows, keys, f.n["WARP_COLS"]),), lanes=False)
    weights = Owners("P", "keys of a tile", (_threads(rows, keys, softmax),))
    output = Owners("O", "components", (_fragments(rows, dim, f.n["WARP_COLS"]),), lanes=False)
    f.share("Q", (rows, dim), "q_smem")
    f.share("K", (slots, keys, dim), "k_smem")
    f.share("V", (slots, keys, dim), "v_smem")
    f.share("S", (buffers, rows, keys), "s_smem")
    f.share("P", (buffers, rows, keys), "p_smem")
    f.share("m, l", (buffers, rows, "factors"), "factor_smem", "inv_l_smem")
    f.keep("Q", dim * 16 // WARP, HALF)
    f.keep("O", output.per_lane)
    f.keep("m, l", 2 * lane_rows)
    steps = TURNS + 2
    ops = [op for t in range(steps) for op in (
        K.op(t, max(0.0, 1.0 + t - ahead), 1.0 + t),
        V.op(t, max(0.0, 3.0 + t - ahead), 3.0 + t),
        SCORES.op(t, 1.0 + t, 2.0 + t),
        WEIGHTS.op(t, 2.0 + t, 3.0 + t),
        OUTPUT.op(t, 3.0 + t, 4.0 + t),
    )]  # fmt: skip
    end = 1.0 + steps
    shown = tuple(op for op in ops if op.stop <= end)
    barriers = tuple(1.0 + step for step in range(steps + 1))
    loads = f"cp.async by warps {f.n['FIRST_LOAD_WARP']} to {f.warps - 1}, {slots} slots in shared memory"
    walk = Walk(keys, ("S, P and O",), loads, shown, barriers, (end + 0.45,))
    return f.division(rows, (scores, weights, output), walk)


def _rows_in_registers(f: Facts, q: str, rows: int, weights: Owners, output: Owners) -> None:
    """What stages 12 to 16 have in common: S, P and O are in registers."""
    f.share("Q", (rows, f.dim), q)
    f.keep("S", weights.per_lane)
    f.keep("P", weights.per_lane, HALF)
    f.keep("O", output.per_lane)
    f.keep("m, l", 2 * len(np.unique(np.argwhere(output.sheets[0] == output.one_lane)[:, 0])))


def _mma_sync(stage: Stage) -> Division:
    f = Facts(stage)
    warp_rows, rows, keys, slots = (f.n[x] for x in ("WARP_ROWS", "BLOCK_M", "BLOCK_N", "STAGES"))

    def thread(r: np.ndarray, c: np.ndarray) -> np.ndarray:
        return WARP * (r // warp_rows) + _quad_lane(r, c)

    weights = Owners("S and P", "keys of a tile", (_threads(rows, keys, thread),))
    output = Owners("O", "components", (_threads(rows, f.dim, thread),))
    f.shared["q_smem"] = f.launch.shared_bytes - f.shared["k_smem"] - f.shared["v_smem"]
    _rows_in_registers(f, "q_smem", rows, weights, output)
    f.share("K", (slots, keys, f.dim), "k_smem")
    f.share("V", (slots, keys, f.dim), "v_smem")
    f.share("O", (rows, f.dim), "q_smem", over="Q")
    if f.n["Q_IN_REGISTERS"]:
        f.keep("Q", warp_rows * f.dim // WARP, HALF)
    loads = f"cp.async by all warps, {slots} slots in shared memory"
    phases = ((SCORES,), 0), ((WEIGHTS,), 0), ((OUTPUT,), 0)
    return f.division(rows, (weights, output), _ring(keys, loads, slots, *phases, head=1))


def _split_kv(stage: Stage) -> Division:
    f = Facts(stage)
    warp_rows, rows, keys, slots = (f.n[x] for x in ("WARP_ROWS", "BLOCK_M", "BLOCK_N", "STAGES"))
    row_warps, key_warps = f.n["ROW_WARPS"], f.n["KEY_WARPS"]

    def thread(r: np.ndarray, c: np.ndarray, part: Any) -> np.ndarray:
        return WARP * (part * row_warps + r // warp_rows) + _quad_lane(r, c)

    step = _threads(rows, f.n["STEP"], lambda r, c: thread(r, c, c // keys))
    parts = tuple(_threads(rows, f.dim, functools.partial(thread, part=n)) for n in range(key_warps))
    weights, output = Owners("S and P", "keys of a step", (step,)), Owners("O", "components", parts)
    _rows_in_registers(f, "smem", rows, weights, output)
    f.share("K", (slots, f.n["STEP"], f.dim), "k_smem")
    f.share("V", (slots, f.n["STEP"], f.dim), "v_smem")
    f.share("O", (key_warps, rows, f.dim), "o_smem", over="Q and K")
    f.share("m, l", (2, key_warps, rows), "m_smem", "l_smem")
    if f.n["Q_IN_REGISTERS"]:
        f.keep("Q", warp_rows * f.dim // WARP, HALF)

    def dealt(work: Work) -> tuple[Work, ...]:
        names = [_listed(range(n * row_warps, (n + 1) * row_warps)) for n in range(key_warps)]
        return tuple(Work(name, work.kind, work.matrix, n, key_warps) for n, name in enumerate(names))

    bring = tuple(Work(x.row, LOAD, x.matrix, n, key_warps) for x in (K, V) for n in range(key_warps))
    loads = f"cp.async by all warps, {slots} slots of {key_warps} tiles in shared memory"
    phases = ((dealt(SCORES), 0), (dealt(WEIGHTS), 0), (dealt(OUTPUT), 0))
    walk = _ring(keys, loads, slots, *phases, head=1, bring=bring)
    end = max(op.stop for op in walk.ops) + 0.9
    names = ("store O", "merge")
    merged = [
        Op(x.row, MERGE, name, end + n, end + n + 1) for x in dealt(OUTPUT) for n, name in enumerate(names)
    ]
    walk = replace(walk, ops=(*walk.ops, *merged), barriers=(*walk.barriers, end, end + 1))
    return f.division(rows, (weights, output), walk)


def _warpgroup(rows: int, columns: int) -> np.ndarray:
    """The threads of a warpgroup in the result of a wgmma."""
    return _threads(rows, columns, lambda r, c: WARP * (r % 64 // 16) + _quad_lane(r, c))


def _tma_wgmma(stage: Stage) -> Division:
    f = Facts(stage)
    rows, keys, slots = (f.n[x] for x in ("ROWS", "BLOCK_N", "STAGES"))
    weights = Owners("S and P", "keys of a tile", (_warpgroup(rows, keys),))
    output = Owners("O", "components", (_warpgroup(rows, f.dim),))
    _rows_in_registers(f, "q_smem", rows, weights, output)
    f.share("K", (slots, keys, f.dim), "k_smem")
    f.share("V", (slots, keys, f.dim), "v_smem")
    f.share("O", (rows, f.dim), "q_smem", over="Q")
    loads = f"TMA, asked by one thread, {slots} slots in shared memory"
    phases = ((SCORES,), 0), ((WEIGHTS,), 0), ((OUTPUT,), 1)
    return f.division(rows, (weights, output), _ring(keys, loads, slots, *phases, head=0, ahead=False))


def _ping_pong(stage: Stage) -> Division:
    f = Facts(stage)
    rows, keys, slots, consumers = (f.n[x] for x in ("BLOCK_M", "BLOCK_N", "STAGES", "CONSUMERS"))

    def of_consumers(columns: int) -> np.ndarray:
        return _warpgroup(rows, columns) + 128 * (1 + np.arange(rows)[:, None] // f.n["ROWS"])

    weights = Owners("S and P", "keys of a tile", (of_consumers(keys),))
    output = Owners("O", "components", (of_consumers(f.dim),))
    _rows_in_registers(f, "q_smem", rows, weights, output)
    f.share("K", (slots, keys, f.dim), "k_smem")
    f.share("V", (slots, keys, f.dim), "v_smem")
    f.share("O", (rows, f.dim), "o_smem")
    last, period = -(-f.seq // keys) - 1, max(2, consumers) if f.n["PING_PONG"] else 2
    end, ops = 1.0 + TURNS * period, []
    for n in range(TURNS + slots):
        k, v = 1.0 + n * period, 1.0 + (n + 1) * period  # the turns that need K and V of this tile
        for work, needed in ((K, k), (V, v)):
            asked = 0.0 if n < slots else needed - (slots - 1) * period
            ops.append(work.op(0, asked, needed))
            ops[-1] = replace(ops[-1], text=f"{work.matrix} {last - n}")
        for c in range(consumers if n < TURNS else 0):
            at, row = k + c * f.n["PING_PONG"], f"warpgroup {c + 1}"
            products = f"S {last - n}" + (f", O {last - n + 1}" if n else "")
            ops += [
                Op(row, MULTIPLY, products, at, at + 1),
                Op(row, SOFTMAX, f"P {last - n}", at + 1, at + period),
            ]
    shown = tuple(replace(op, stop=min(op.stop, end)) for op in ops if op.start < end)
    loads = f"TMA, asked by one thread of warpgroup 0, {slots} slots in shared memory"
    return f.division(
        rows,
        (weights, output),
        Walk(keys, ("S, P and O",), loads, shown, skips=(end + 0.45,), backwards=True),
    )


def _cluster_split(stage: Stage) -> Division:
    f = Facts(stage)
    rows, keys, slots, parts = (f.n[x] for x in ("ROWS", "BLOCK_N", "STAGES", "PARTS"))
    cluster, warpgroups, threads = (f.n[x] for x in ("CLUSTER", "WARPGROUPS", "THREADS"))

    def first(part: int) -> int:
        """The first thread, in the cluster, of the warpgroup that has tile `part` of a turn."""
        return part % cluster * threads + part // cluster * 128

    turn = np.concatenate([_warpgroup(rows, keys) + first(part) for part in range(parts)], axis=1)
    weights = Owners("S and P", "keys of a turn", (turn,))
    output = Owners("O", "components", tuple(_warpgroup(rows, f.dim) + first(part) for part in range(parts)))
    f.share("Q", (rows, f.dim), "q_smem")
    f.keep("S", weights.per_lane)
    f.keep("P", weights.per_lane, HALF)
    f.keep("O", rows * f.dim // 128)
    f.keep("m, l", 4)
    ring = f.shared["ring_smem"]
    f.shared |= {"k_smem": ring // 2, "v_smem": ring // 2}
    f.share("K", (warpgroups, slots, keys, f.dim), "k_smem")
    f.share("V", (warpgroups, slots, keys, f.dim), "v_smem")
    f.share("O", ("messages",), "sum_smem", "share_smem")
    f.share("m, l", ("messages",), "near_smem", "far_smem")
    turns = min(TURNS, -(-f.seq // (keys * parts)))
    ops: list[Op] = []
    for n in range(turns * parts):
        block, group, at = n % parts % cluster, n % parts // cluster, 1.0 + 3 * (n // parts)
        row = f"block {block}, warpgroup {group}"
        asked = 0.0 if n // parts < slots else at - 3 * slots + 3
        ops += [replace(K.op(n, asked, at)), V.op(n, asked, at + 2)]
        for k, work in enumerate((SCORES, WEIGHTS, OUTPUT)):
            ops.append(Op(row, work.kind, f"{work.matrix} {n}", at + k, at + k + 1))
        if n // parts == turns - 1 and parts > 1:
            ops.append(Op(row, MERGE, "merge", at + 3, at + 4))
    loads = f"TMA, asked by one thread of each block, {slots} slot{'s' * (slots > 1)} for each warpgroup"
    walk = Walk(keys, ("S, P and O",), loads, tuple(ops))
    return f.division(rows, (weights, output), walk, cluster)


def _listed(numbers: Sequence[int]) -> str:
    first, last = numbers[0], numbers[-1]
    return f"warp {first}" if first == last else f"warps {first} to {last}"


DESCRIPTIONS: dict[int, Callable[[Stage], Division]] = {
    0: _three_loops,
    1: _a_lane_a_row,
    2: _a_lane_a_row,
    3: _warp_reduction,
    4: _a_warp_a_row,
    5: _a_warp_a_row,
    6: _register_tiles,
    7: _wmma,
    8: _wmma,
    9: _wmma,
    10: _wmma,
    11: _warp_specialized,
    12: _mma_sync,
    13: _split_kv,
    14: _tma_wgmma,
    15: _ping_pong,
    16: _cluster_split,
}
