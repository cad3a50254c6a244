"""The warm-up of lesson 07: the first kernel in CUDA C, a tile transposed in shared memory."""

import numpy as np

from flashcore_numba.course.counters import total
from flashcore_numba.course.spec import Exercise, Explanation, Gate, Lesson, Question
from flashcore_numba.simulator.count import WARP, WORD, turns_of


def _wavefronts(row: int) -> int:
    """Those of one load of a column, when the rows of the tile are `row` floats apart."""
    return int(turns_of(np.arange(WARP) * row, WORD).max()) + 1


EXERCISE = Exercise(
    stage="warm_up",
    file="warm_up_transpose.cu",
    first="__shared__ float tile[TILE][TILE + 1];  // 33 floats apart: a column is in 32 banks",
    last="out[out_row * rows + out_column] = tile[threadIdx.x][threadIdx.y];",
    task="""\
Transpose a matrix by tiles of 32 x 32 floats: out[c, r] = x[r, c].
All threads of the block execute every line; each has its own threadIdx.x and threadIdx.y, from 0 to 31.

1. Declare the tile in shared memory.
2. Load one element of x per thread and store it to the tile: the block's tile starts at row
   blockIdx.y * TILE and column blockIdx.x * TILE of x.
3. Wait until the tile is whole.
4. Store one element per thread to out, whose tile starts at row blockIdx.x * TILE and column
   blockIdx.y * TILE. Neighbouring threads store neighbouring elements.
x need not be a multiple of 32 high or wide: neither load nor store outside.""",
    given={
        "x": "const float*: x[r, c] is x[r * columns + c]",
        "out": "float*: out[c, r] is out[c * rows + r]",
        "rows": "int: rows of x, columns of out",
        "columns": "int: columns of x, rows of out",
        "TILE": "32",
        "threadIdx.x": "the thread's column in the block, which is its lane; threadIdx.y is its row, which "
        "is its warp",
        "C++": "int row = ...; declares a number; `__shared__ float name[ROWS][COLUMNS];` declares an "
        "array in shared memory, and name[i][j] is its element; if (a && b) { ... } is a condition; a "
        "statement ends with ;",
        "__syncthreads": "__syncthreads(); the barrier of the block",
    },
    wanted=(),
    hints=(
        "A thread handles two elements that have nothing to do with each other: it brings one element of x "
        "to the tile, and after the barrier it takes another one from the tile to out. Each of the two "
        "needs a row and a column of its own matrix.",
        "A warp is 32 threads with the same threadIdx.y. For its request to touch 4 sectors, threadIdx.x "
        "must count columns both times: column = blockIdx.x * TILE + threadIdx.x in x, and out_column = "
        "blockIdx.y * TILE + threadIdx.x in out.",
        "So the thread stores to tile[threadIdx.y][threadIdx.x] and loads from "
        "tile[threadIdx.x][threadIdx.y]. A warp then loads a column of the tile. With TILE floats from one "
        "row to the next, all 32 elements of a column are in one bank; one float more per row puts them in "
        "32 banks.",
        "In order: __shared__ float tile[TILE][TILE + 1]; row and column, and under `if (row < rows "
        "&& column < columns)` the load; __syncthreads(); out_row = blockIdx.x * TILE + threadIdx.y and "
        "out_column, and under a condition that compares them with columns and rows the store.",
    ),
    gates=(
        Gate(
            what="sectors of the loads from global memory",
            value=total("global_load_sectors"),
            before=None,
            right=1_024,
            bar=1_100,
            advice="Neighbouring lanes must load neighbouring elements of x: threadIdx.x belongs to the "
            "column.",
            cause="global loads",
        ),
        Gate(
            what="sectors of the stores to global memory",
            value=total("global_store_sectors"),
            before=None,
            right=1_024,
            bar=1_100,
            advice="Neighbouring lanes must store neighbouring elements of out: threadIdx.x belongs to the "
            "column of out as well, so it is the tile that is read the other way round.",
            cause="global stores",
        ),
        Gate(
            what="wavefronts of shared memory",
            value=total("shared_wavefronts"),
            before=None,
            right=512,
            bar=560,
            advice="A request whose lanes meet in one bank takes a wavefront per lane. How far apart are "
            "the elements of a column, and what would it take for them to be in 32 banks?",
            cause="bank conflicts",
        ),
        Gate(
            what="barriers, counted once per warp",
            value=total("barriers"),
            before=None,
            right=256,
            bar=256,
            advice="One barrier is needed, between the last store to the tile and the first load from it.",
            cause="barriers",
        ),
    ),
    advice={
        "value": "Take one element, x[1, 40], and follow it: which block and thread load it, where in the "
        "tile is it, and which block and thread store it to out[40, 1]?",
        "out of bounds": "x has `rows` rows and `columns` columns, and out has them the other way round. A "
        "tile at the edge sticks out: both the load and the store need a condition.",
        "uninitialised read": "At the edge some elements of the tile are never stored. The condition of "
        "the store to out must leave them alone: out has `columns` rows and `rows` columns.",
    },
)

LESSON = Lesson(
    number=7,
    name="warm-up",
    file="07_wmma_qk",
    title="A tile transposed",
    idea="Rows of x are columns of out. Shared memory lets a warp move neighbours on both sides.",
    picture="turned",
    exercise=EXERCISE,
    questions=(
        Question(
            key="sectors",
            text="Without shared memory a warp loads 32 neighbouring floats of a row of x and stores them "
            "as a column of out, with 64 floats from one row of out to the next. How many sectors does "
            "that one store touch?",
            unit="sectors",
            truth=lambda evidence: 32,
            source="computed",
            why="The 32 elements are 256 bytes apart, so each has a 32-byte sector to itself: 32 instead "
            "of 4.",
        ),
        Question(
            key="unpadded",
            text="A tile of 32 x 32 floats in shared memory has 32 floats from one row to the next. How "
            "many wavefronts does a warp's load of one column take?",
            unit="wavefronts",
            truth=lambda evidence: _wavefronts(WARP),
            source="computed",
            why="A row of 32 floats fills the 32 banks once, so a column is in a single bank, and a bank "
            "serves one word per wavefront.",
        ),
        Question(
            key="padded",
            text="And with 33 floats from one row to the next?",
            unit="wavefronts",
            truth=lambda evidence: _wavefronts(WARP + 1),
            source="computed",
            why="33 leaves a remainder of 1 when divided by 32: each row starts one bank further, and the "
            "32 elements of a column are in 32 banks.",
        ),
    ),
    explanation=Explanation(
        text="Why does the tile go through shared memory at all?",
        right="sectors",
        feedback={
            "sectors": "Yes. Rows of x are columns of out, so without the tile either the loads or the "
            "stores touch 32 sectors per request instead of 4.",
            "reuse": "No: each element is loaded once and stored once. Nothing is used twice, unlike K and "
            "V in lesson 04.",
            "latency": "No: an element waits longer this way, for a store, a barrier and a load more.",
        },
    ),
    figures={
        "columns": "Lanes and banks of your tile: a row stored, a column loaded.",
        "wavefronts": "Wavefronts of shared memory by source line.",
    },
)
