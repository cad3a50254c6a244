"""Lesson 20: one query token over many keys, divided among blocks, and merged by the one that comes last."""

from flashcore_numba.course.counters import total
from flashcore_numba.course.figures.keys import blocks_of
from flashcore_numba.course.spec import Exercise, Explanation, Gate, Lesson, Question, Wanted

STAGE, CHUNKS = "decode/split", "decode/chunks"
REQUEST = "1x2x128x64"  # keys of two parts, which one block takes in turn
CLOCK = 1.98e9  # per second, of the recorded GPU

EXERCISE = Exercise(
    stage=STAGE,
    file="decode_parts.cuh",
    variant="in_turn",
    first="__syncthreads();  // the block's part is whole; O of all warps has been read and may be written "
    "over",
    last="__syncthreads();  // the parts' log-sum-exps are there",
    task="""\
Who merges the parts of a request: lines of finish_part, which all threads of the block call once per part.
On the lines before, the block's threads have stored O of its part in `parts` and the LSE in `part_lse`, or,
where the request has one part, the result itself.

1. A request of one part is done: the block goes on with its next part. The loads of that part overwrite O
   of the warps, which other threads may still be reading.
2. Where there are more, arrive at the counter of this request, K/V head and tile of rows: once per block,
   when all of its threads have stored. The counter must be 0 again after the last arrival.
3. The block that comes last stays, all others go on with their next part. All its threads must know it, and
   see what the other blocks have stored.
4. The last block copies the LSE of all parts to lse_smem, for the rows that exist. The lines after these read
   it, every thread what others have copied.""",
    given={
        "count": "int: the parts of this request",
        "part": "int: the number of the block's part among them",
        "arrived": "uint32_t*, global: the counter of this request, K/V head and tile of rows, 0 before the "
        "launch",
        "last_smem": "bool, shared",
        "lse_smem": "float, shared, [MAX_PARTS][WARP_ROWS]: by part and row",
        "part_lse": "const float*, global: what all blocks have stored",
        "part_row(number, row)": "where the LSE of a part and a row is in part_lse",
        "rows.inside": "int: the rows of the tile that exist, at most WARP_ROWS",
        "ptx": "ptx::arrive_wrapping(counter, last): adds 1, or sets the counter to 0 where it is `last`, "
        "and returns what it was before. It releases what the thread has seen so far, and acquires what "
        "earlier arrivals have released",
        "THREADS, WARP_ROWS": "threads of the block, rows of a tile: constants",
        "return": "leaves for the block's next part. All threads of the block have to take it together",
    },
    wanted=(
        Wanted("lse_smem[0][threadIdx.x % rows.inside]", "log2 of part 0's sum, of each row"),
        Wanted("lse_smem[count - 1][threadIdx.x % rows.inside]", "log2 of the last part's sum, of each row"),
    ),
    hints=(
        "An arrival says: this block's part is stored. Which threads have stored it, and how does the one "
        "that arrives know that they have?",
        "arrive_wrapping returns how many came before. With `count` parts, what does the last one get? The "
        "same number is the one after which the counter goes back to 0.",
        "One thread has the answer and all need it: it goes through shared memory, with a barrier after it. "
        "That barrier also hands on what the thread's arrival has acquired.",
        "__syncthreads(); if (count == 1) return; if (threadIdx.x == 0) last_smem = "
        "ptx::arrive_wrapping(arrived, count - 1) == count - 1; __syncthreads(); if (!last_smem) return; "
        "then a loop over i from threadIdx.x to count * WARP_ROWS in steps of THREADS: number = i / "
        "WARP_ROWS, row = i % WARP_ROWS, and where row < rows.inside lse_smem[number][row] = "
        "part_lse[part_row(number, row)]; at last __syncthreads().",
    ),
    gates=(
        Gate(
            what="barriers, counted once per warp",
            value=total("barriers"),
            before=0,
            right=80,
            bar=80,
            advice="Three barriers are enough here: the part is stored, everybody knows who is last, the "
            "LSEs are there.",
            shape=REQUEST,
            cause="barriers",
        ),
        Gate(
            what="arrivals at counters, requests of a warp",
            value=total("global_atomic_requests"),
            before=0,
            right=4,
            bar=4,
            advice="A block arrives once per part, and not at all where there is only one.",
            shape=REQUEST,
        ),
    ),
    advice={
        "race": "Somebody reads what another thread has not stored yet, or stores where another still reads. "
        "Which of the three does the line after it need: the block's part is whole, the block knows who is "
        "last, the LSEs are there?",
        "race between blocks": "The last block reads what other blocks have stored. Each of them must have "
        "stored all of it before its arrival, and the arrival must release it: ptx::arrive_wrapping does, a "
        "plain atomic does not.",
        "uninitialised read": "The last block reads the parts of all blocks. Was it really the last, and "
        "does every thread of it wait until the LSEs are there?",
    },
)

QUESTIONS = (
    Question(
        key="blocks",
        text="Four requests, 64 query heads on 8 K/V heads, one token each. If a block takes all rows of a "
        "K/V head of a request and all of its keys, how many of the 132 SMs have nothing to do?",
        unit="SMs",
        truth=lambda evidence: 132.0 - blocks_of(4, 8, 1),
        source="computed",
        why="8 K/V heads of 4 requests are 32 blocks. The 8 query heads of a group are 8 rows of one block, "
        "because they read the same keys.",
    ),
    Question(
        key="megabytes",
        text="One such request with 32,768 keys and D = 128, in float16: how many MB of K and V must be "
        "read?",
        unit="MB",
        truth=lambda evidence: 2 * 8 * 32768 * 128 * 2 / 1e6,
        source="computed",
        why="2 arrays x 8 heads x 32,768 keys x 128 components x 2 bytes. Q, O and the parts are small "
        "beside it.",
    ),
    Question(
        key="in_flight",
        text="At the measured rate of device memory an SM gets <!--calc recorded()[0]['ceilings']"
        "['dram_gbs'] / 132 / 1.98 | .1f--><!----> bytes per clock. If a load takes 1,000 clocks, how many "
        "KB must an SM have asked for at any time?",
        unit="KB",
        truth=lambda evidence: evidence.recorded()[0]["ceilings"]["dram_gbs"] * 1e9 / 132 / CLOCK,
        source="computed",
        why="Little's law: what is under way is the rate times the time that each piece takes.",
    ),
    Question(
        key="arrivals",
        text="One request of 128 keys, 2 heads, and blocks of the variant in_turn, which divides a request "
        "into two parts: how often does a thread add to a counter in global memory?",
        unit="times",
        truth=lambda evidence: evidence.count(STAGE, "global_atomic_requests", REQUEST, "in_turn"),
        source="counted",
        why="Once per part and K/V head.",
    ),
)

LESSON = Lesson(
    number=20,
    file="20_decode",
    title="One token, many keys",
    idea="One query token leaves a GPU empty, so blocks divide its keys; the block that comes last merges "
    "what all have left, in the same launch.",
    exercise=EXERCISE,
    questions=QUESTIONS,
    explanation=Explanation(
        text="What sets the least time of decode/split for one request with 64 query heads on 8, D = 128 and "
        "8192 keys?",
        right="memory",
        feedback={
            "tensor": "No: a block multiplies 16 rows, of which 8 are there. Even so the products of one "
            "byte of K or V are 16 FLOP, and the H200 can do <!--calc recorded('4x32x4096x64')[0]['ceilings']"
            "['mma_sync_tflops'] * 1e3 / recorded()[0]['ceilings']['dram_gbs'] | .0f--><!----> in the time "
            "that the byte takes to come.",
            "exponentials": "No: a key needs 8 exponentials and 512 bytes. An SM does 16 of them per clock, "
            "and waits <!--calc 512 / (recorded()[0]['ceilings']['dram_gbs'] / 132 / 1.98) | .0f--><!----> "
            "clocks for the bytes.",
            "memory": "Yes, as a floor: 33.6 MB of K and V are read once. Whether a kernel reaches the floor "
            "is a question of bytes in flight, of even work, and of what comes before the first load and "
            "after the last one.",
            "scratch": "No: 16 parts of 8 rows, of all K/V heads, are <!--calc 8 * 16 * 8 * 128 * 4 / 1e6 | "
            ".1f--><!----> MB of floats, written once and read once, beside 33.6 MB of K and V.",
        },
    ),
    figures={
        "barriers": "Barriers by source line, those of decode/chunks first.",
        "arrivals": "The parts of a request as they end, and who merges: two launches, one, and a cluster.",
    },
    before=(CHUNKS,),
    after=("decode/cluster",),
    picture="keys",
)
