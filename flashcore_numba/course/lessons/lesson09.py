"""Lesson 09: asynchronous copies into a memory map, and what the map cost."""

from typing import Any

from flashcore_numba.course.counters import total
from flashcore_numba.course.spec import Exercise, Explanation, Gate, Lesson, Question, Wanted

EXERCISE = Exercise(
    stage=9,
    file="stage09_async_copy.cu",
    first="const element* k_tile = k_smem + t % BUFFERS * KEYS * KV_LD;",
    last="__syncthreads();  // S is whole before a lane reads its row of it",
    task="""\
The head of iteration t: everything up to S. All 384 threads of the block execute these lines, once for each
tile t = tiles.begin, ..., tiles.end - 1. Tile t was asked for one iteration ago (the first one before the
first iteration). Its copies go to buffer t % BUFFERS. Leave
  - k_tile and v_tile: pointers of type const element* to the first element of tile t in k_smem and v_smem;
    the rest of the iteration reads v_tile
  - the copies of tile t + 1 asked for, and possibly still under way
  - s_smem: the 48 x 32 scores of tile t, whole, and safe to read for all threads: parts of 16 x 16, one
    for each of the warps 0 to 5; the other six warps multiply nothing""",
    given={
        "t": "int: the number of the tile",
        "k_smem, v_smem": "element*, shared: BUFFERS tiles one after the other, each of KEYS rows of D "
        "halves; from one row to the next are KV_LD halves",
        "BUFFERS, KEYS, KV_LD": "2 buffers, 32 keys per tile, D + 8 halves from one row to the next",
        "load_keys_and_values": "load_keys_and_values(n): this thread asks for its share of tile n, as one "
        "group of copies; the group is empty where there is no tile n",
        "ptx": "ptx::cp_async_wait<N>(): waits until at most N of this thread's newest groups are unfinished",
        "__syncthreads": "__syncthreads(): the barrier of all 384 threads",
        "warp": "int: number of the warp in the block, 0 to 11",
        "s_row, s_col": "int: first row and first key of this warp's part of S; warps 0 to 5 have one",
        "multiply_qk": "multiply_qk(to, q_rmem, keys): a warp computes 16 x 16 scores from its rows of Q and "
        "the 16 rows of K that begin at keys, and stores them at to",
        "s_smem, S_LD": "float*, shared: S; from one row to the next are S_LD floats",
        "q_rmem": "the warp's 16 rows of Q, in fragments",
    },
    wanted=(
        Wanted("k_tile - k_smem", "where tile t of K begins, in halves from k_smem"),
        Wanted("v_tile - v_smem", "where tile t of V begins, in halves from v_smem"),
        Wanted("s_smem[row * S_LD + 4 * part]", "one score of the row of this thread"),
    ),
    hints=(
        "Five things, and the order decides what overlaps: where tile t is; ask for tile t + 1; wait for "
        "tile t; a barrier; multiply. Then a barrier once more.",
        "The groups of a thread finish in the order in which they were committed. When the wait is reached, "
        "which groups can be unfinished, and which of them must not be?",
        "A wait speaks of this thread's copies only. A warp reads rows of K that the threads of all other "
        "warps have copied.",
        "k_smem + t % BUFFERS * KEYS * KV_LD for K, the same for V; load_keys_and_values(t + 1); "
        "ptx::cp_async_wait<1>(); barrier; if (warp < 6) multiply_qk(s_smem + s_row * S_LD + s_col, q_rmem, "
        "k_tile + s_col * KV_LD); barrier.",
    ),
    gates=(
        Gate(
            what="barriers, counted once per warp",
            value=total("barriers"),
            before=512,
            right=612,
            bar=640,
            advice="Two barriers are enough here: one between the copies and the warps that read them, one "
            "between S and the lanes that read it.",
        ),
        Gate(
            what="groups of copies waited for at once, counted once per thread",
            value=total("wait_at_once"),
            before=0,
            right=1_152,
            bar=1_200,
            advice="Only Q, before the first iteration, may be waited for at once. Look at which tile your "
            "wait lets stay under way: nothing else can hide the time of its copies.",
        ),
        Gate(
            what="requests to load from global memory",
            value=total("global_load_requests"),
            before=288,
            right=224,
            bar=224,
            advice="Each tile is asked for once: look for an iteration that asks for a tile that is there "
            "already.",
        ),
    ),
    advice={
        "missing wait": "Copies are still under way where somebody reads them or copies to the same place. "
        "Count the groups that are unfinished when your wait is reached, and how many of them it lets be.",
        "race": "Who wrote what is read here? A copy is followed by the wait of the thread that asked for it "
        "and then by a barrier of the whole block. S, which six warps write and all read, is followed by a "
        "barrier.",
        "uninitialised read": "Where does tile t begin, and who multiplies? A buffer is KEYS rows of KV_LD "
        "halves, and only warps 0 to 5 have rows of Q and a part of S.",
    },
)


def _padding(evidence: Any) -> float:
    """Bytes more if Q, S, P and O had rows that are 16 or 32 bytes longer than their contents."""
    rows, keys = evidence.constant(9, "ROWS"), evidence.constant(9, "KEYS")
    d = evidence.constant(9, "D")
    q = rows * 2 * (d + 8 - evidence.constant(9, "Q_LD"))
    s = rows * 4 * (keys + 8 - evidence.constant(9, "S_LD"))
    p = rows * 2 * (keys + 8 - evidence.constant(9, "P_LD"))
    return q + s + p + rows * 4 * (d + 8 - evidence.constant(9, "O_LD"))


def _wavefronts(row_bytes: int) -> int:
    """Of a 16 x 16 fragment of halves: four steps of 8 rows of 16 bytes, which are `row_bytes` apart."""
    words = [(row * row_bytes // 4 + word) % 32 for row in range(8) for word in range(4)]
    return 4 * max(words.count(bank) for bank in range(32))


QUESTIONS = (
    Question(
        key="smem_bytes",
        text="At D = 64 a block holds Q [48, 64] in halves, two tiles of K and two of V [32, 64] in halves "
        "with rows of 72, S [48, 32] in floats with rows of 48, P [48, 32] in halves, O [48, 64] in floats, "
        "and m and l, a float per row each. How many bytes of shared memory is that?",
        unit="bytes",
        truth=lambda evidence: evidence.constant(9, "SMEM_BYTES"),
        source="computed",
        why="6,144 for Q, 9,216 each for K, V and S, 3,072 for P, 192 each for m and l, 12,288 for O. A "
        "kernel without dynamic shared memory may have 49,152: m and l alone are the 384 bytes too many.",
    ),
    Question(
        key="p_wavefronts",
        text="A warp loads a 16 x 16 part of P as a fragment: 512 bytes, four wavefronts at best, each of 8 "
        "rows of 16 bytes. Suppose that the rows of P were as long as those of S, 48 elements: 96 bytes. "
        "How many wavefronts would the fragment take?",
        unit="wavefronts",
        truth=lambda evidence: float(_wavefronts(2 * evidence.constant(9, "S_LD"))),
        source="computed",
        why="96 bytes are 24 banks. Rows 0 to 3 begin in banks 0, 24, 16 and 8, rows 4 to 7 in the same "
        "four: two rows meet, and each of the four wavefronts becomes two. With the 64 bytes of the plan's "
        "map each becomes four.",
    ),
    Question(
        key="microseconds",
        text="Stage 08 takes <!--us 08 wmma_full--><!----> µs at 1x8x512x64. Stage 09 has copies that are "
        "under way while it multiplies, and the plan's memory map. How many microseconds does it take?",
        unit="µs",
        truth=lambda evidence: evidence.us("09 async_copy"),
        source="measured",
        why="More than stage 08. The copies are hidden, and the rows of Q, S, P and O meet in the banks: "
        '<!--calc count(9, "bank_conflicts", "1x1x512x64") / grid(9, "1x1x512x64") | ,.0f--><!----> lost '
        "wavefronts per block, and an SM delivers one per clock.",
    ),
    Question(
        key="extra_bytes",
        text="Suppose Q, P and S (in elements: 64, 32 and 32 columns) and O (64) all had rows 8 elements "
        "longer than their columns, as K and V have. How many bytes more, or fewer, than the plan's map is "
        "that?",
        unit="bytes",
        truth=_padding,
        source="computed",
        why="768 for Q, 768 for P, 1,536 for O; S has 16 columns too many in the plan's map and gives 1,536 "
        "back.",
    ),
)

LESSON = Lesson(
    number=9,
    file="09_async_copy",
    title="The next tile is on its way",
    idea="A copy that needs no thread to wait for it; and a memory map, drawn and paid for byte by byte.",
    exercise=EXERCISE,
    questions=QUESTIONS,
    explanation=Explanation(
        text="What makes stage 09 slower than stage 08?",
        right="conflicts",
        feedback={
            "copies": "No: they are hidden. The groups of copies that are waited for at once are "
            "<!--count 9 wait_at_once--><!----> at 1x1x128x64, one per thread, for Q. "
            "And stage 10 shows what hiding one tile's copies is worth: it gains "
            '<!--calc us("10 pipeline 1") - us("10 pipeline") | .1f--><!----> µs.',
            "barriers": "No: four per tile, as in stage 08; at 1x1x512x64 they are <!--calc "
            'barriers(9, shape="1x1x512x64")--><!----> and <!--calc barriers(8, '
            'shape="1x1x512x64")--><!---->.',
            "blocks": 'Only in part: <!--calc 8 * grid(9, "1x1x512x64")--><!----> blocks of 48 rows leave a '
            "third of the SMs without work, but a block does half as much again as one of stage 08, and with "
            "padded rows the same blocks took 15.6 µs (measured once).",
            "conflicts": 'Yes: a block loses <!--calc conflicts(9, "_matrix_sync", shape="1x1x512x64") / '
            'grid(9, "1x1x512x64") | ,.0f--><!----> wavefronts in its fragment loads and stores; stage 08 '
            'loses <!--calc conflicts(8, "_matrix_sync", shape="1x1x512x64") / grid(8, "1x1x512x64") | '
            ',.0f--><!---->. At one per clock these are <!--calc conflicts(9, "_matrix_sync", '
            'shape="1x1x512x64") / grid(9, "1x1x512x64") / 1980 | .1f--><!----> µs, and the two times differ '
            'by <!--calc us("09 async_copy") - us("08 wmma_full") | '
            ".1f--><!---->.",
            "memory": 'No: the profiler saw <!--calc profiled("09 async_copy", "dram_read_bytes") / 1e6 | '
            ".1f--><!----> MB come from device memory, the inputs once.",
        },
    ),
    figures={
        "memory": "The memory map to scale: what is where in the block's shared memory.",
        "strides": "In which banks the first 8 rows of each array begin, and how many wavefronts they need.",
        "wavefronts": "Wavefronts by source line, those lost to bank conflicts hatched.",
        "barriers": "The barriers by source line, beside those of stage 08.",
    },
    before=("08 wmma_full",),
)
