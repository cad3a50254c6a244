"""Lesson 10: how many tiles in flight are enough."""

from flashcore_numba.course.counters import total
from flashcore_numba.course.spec import Exercise, Explanation, Gate, Lesson, Question

LONGER = "1x1x256x64"  # four tiles: more than three stages hold

EXERCISE = Exercise(
    stage=10,
    file="stage10_pipeline.cu",
    variant="3",
    first="auto load_keys_and_values = [&](int t) {  // one group per tile, empty beyond the last: groups "
    "count tiles",
    last="for (int t = 0; t < STAGES - 1; t++) load_keys_and_values(tiles.begin + t);",
    task="""\
Fill the pipeline, for any number of STAGES from 1 to 4 (the check compiles it with 3). All 384 threads of
the block execute these lines, once.
1. Define load_keys_and_values(t), a function inside the kernel: it asks for this thread's share of tile t of
   K and of V, into their buffer of the ring, as ONE group of copies. The loop calls it for tiles that do not
   exist, too, and counts on a group each time.
2. Ask for the block's rows of Q, as a group of their own, the first.
3. Ask for as many tiles as can be under way before the first iteration. Iteration t begins with
   load_keys_and_values(t + STAGES - 1), then waits until at most STAGES - 1 groups are unfinished.""",
    given={
        "load_tile": "load_tile(to, from, row_stride, inside): asks for this thread's share of KEYS rows; "
        "rows from `inside` on become zeros. It commits nothing",
        "k_smem, v_smem": "element*, shared: STAGES tiles one after the other, each of KEYS * LD halves",
        "k, v": "const element*, global: row 0 of this block's head",
        "params.k.row, params.v.row": "long long: elements from one row of k or v to the next",
        "params.S_k": "int: how many keys the head has",
        "tiles.begin, tiles.end": "int: the block's first tile, and the one after its last; equal where it "
        "sees no key",
        "KEYS, LD, STAGES": "64 keys per tile, D + 8 halves from one row to the next, buffers of the ring",
        "ptx": "ptx::cp_async_commit(): what this thread has asked for since its last commit becomes a "
        "group, perhaps an empty one",
        "tile": "tile::load_tile_async<ROWS, D, LD, THREADS>(to, from, row_stride, inside): the same as "
        "load_tile, for the ROWS rows of Q",
        "q_smem, q, params.q.row, params.S_q, first_row": "where Q goes, where it is, its row "
        "stride, how many rows there are, and this block's first; q already points to that row",
    },
    wanted=(),
    hints=(
        "The ring has STAGES buffers. One of them is being multiplied, so at most how many tiles can be "
        "under way at the moment when iteration t has just asked for its new one?",
        "Count the groups at the first iteration's wait: Q's, those of the tiles asked for here, and the one "
        "that the iteration itself adds. All but the newest STAGES - 1 must be finished. Is tile 0 among "
        "them?",
        "A tile that does not exist gets an empty group, or the waits of the last iterations count wrongly: "
        "the commit belongs after the `if`, not in it.",
        "In the function: if (t < tiles.end) with first_key = t * KEYS and buffer = t % STAGES * KEYS * LD, "
        "two calls of load_tile with params.S_k - first_key rows inside; then the commit. Then Q, a commit, "
        "and STAGES - 1 calls.",
    ),
    gates=(
        Gate(
            what="requests to load from global memory",
            value=total("global_load_requests"),
            before=832,
            right=832,
            bar=832,
            advice="Each tile is asked for once: which tiles does your loop ask for, and which one does "
            "iteration 0 ask for again?",
            shape=LONGER,
        ),
        Gate(
            what="groups of copies waited for at once, counted once per thread",
            value=total("wait_at_once"),
            before=2_304,
            right=2_304,
            bar=2_400,
            advice="Only Q may be waited for at once. Count your groups: the kernel's waits take one group "
            "for Q and one for each tile.",
            shape=LONGER,
        ),
        Gate(
            what="wavefronts of shared memory",
            value=total("shared_wavefronts"),
            before=98_928,
            right=41_472,
            bar=42_500,
            advice="The rows of K and V are LD halves apart, in every buffer of the ring.",
            shape=LONGER,
        ),
    ),
    advice={
        "missing wait": "Copies are still under way where somebody reads them or copies to the same place. "
        "Count the groups: one for Q, then one for each tile, also for tiles that do not exist. And look at "
        "which buffer a tile goes to.",
        "race": "A copy writes into a buffer that a warp may still be reading. Which tile was in this buffer "
        "before, and has every warp left it?",
        "out of bounds": "The last argument of load_tile says how many rows there are from the tile's first "
        "one on, not in the whole head.",
    },
)


QUESTIONS = (
    Question(
        key="stage_bytes",
        text="A stage more is one more tile of K and one of V, each of 64 rows. How many bytes of shared "
        "memory is that at D = 128, where a row is padded by 8 halves as well?",
        unit="bytes",
        truth=lambda evidence: (
            evidence.constant(10, "SMEM_BYTES", head_dim=128, variant="3")
            - evidence.constant(10, "SMEM_BYTES", head_dim=128, variant="2")
        ),
        source="computed",
        why="2 x 64 x 136 x 2 bytes. At D = 64, two stages make a block of 78,336 bytes, four one of "
        "115,200.",
    ),
    Question(
        key="barriers",
        text="Stage 09 reaches <!--calc barriers(9)--><!----> barriers at 1x1x128x64, counted once per "
        "warp: 3 blocks of 12 warps, 4 tiles of 32 keys, 4 barriers per tile and one before the first. "
        "Stage 10 has the same blocks and the same barriers in an iteration, and tiles of 64 keys. How "
        "many?",
        unit="barriers",
        truth=lambda evidence: evidence.count(10, "barriers"),
        source="counted",
        why="Two tiles instead of four: 3 x 12 x (2 x 4 + 1).",
    ),
    Question(
        key="second",
        text="With one stage, a tile is asked for and waited for at once. How many microseconds does the "
        "second stage save at 1x8x512x64, where a block has 8 iterations?",
        unit="µs",
        truth=lambda evidence: evidence.us("10 pipeline 1") - evidence.us("10 pipeline"),
        source="measured",
        why="The latency of a tile's copies from the L2 cache, eight times.",
    ),
    Question(
        key="fourth",
        text="Two more stages: what does the kernel with four take, divided by the kernel with two, at "
        "1x8x512x64? Below 1 is faster.",
        unit="times",
        truth=lambda evidence: evidence.ratio("10 pipeline 4", "10 pipeline"),
        source="measured",
        why='A copy of <!--calc (us("10 pipeline 1") - us("10 pipeline")) / 8 | .2f--><!----> µs has one '
        'iteration of <!--calc (us("10 pipeline") - us("10 pipeline", "1x8x256x64")) / 4 | .2f--><!----> µs '
        "to arrive in. More time is of no use to it, and the prologue has two tiles more to ask for before "
        "anything is multiplied.",
    ),
)

LESSON = Lesson(
    number=10,
    file="10_pipeline",
    title="When deeper is slower",
    idea="A ring of buffers gives each copy more iterations of time, until it has enough; beyond that it "
    "costs.",
    exercise=EXERCISE,
    questions=QUESTIONS,
    explanation=Explanation(
        text="What limits stage 10 with two stages at the mission shape?",
        right="shared",
        feedback={
            "copies": "No: with a third stage they would have twice the time, and the kernel takes "
            "<!--us 10 pipeline 3--><!----> µs instead of <!--us 10 pipeline--><!---->.",
            "barriers": "Hardly: the experiment that left out one of the four in each iteration (and was "
            "still right, because the next iteration's barrier did its work) gained 0.1 µs in 16 iterations, "
            "measured once.",
            "tensor": "No: the tensor cores could do all products in <!--limit tensor--><!----> µs.",
            "shared": 'Yes: a block\'s <!--calc count(10, "shared_wavefronts", "1x1x512x64") / grid(10, '
            '"1x1x512x64") | ,.0f--><!----> wavefronts fill <!--calc count(10, "shared_wavefronts", '
            '"1x1x512x64") / grid(10, "1x1x512x64") / 1980 / us("10 pipeline") | .0%--><!----> of the time, '
            "and where they do "
            "not queue the warps wait for the latency of one: S, P and O go through shared memory between "
            "any two phases.",
            "memory": 'No: <!--calc profiled("10 pipeline", "dram_read_bytes") / 1e6 | .1f--><!----> MB '
            'come from device memory, once, and the L2 cache runs at <!--calc profiled("10 pipeline", '
            '"l2_pct") | .0f--><!----> % of its peak.',
        },
    ),
    figures={
        "in_flight": "Which tiles are under way and which is multiplied, iteration by iteration, for one to "
        "four stages.",
        "memory": "The memory map to scale.",
        "wavefronts": "Wavefronts by source line, those lost to bank conflicts hatched.",
        "barriers": "The barriers by source line, beside those of stage 09.",
    },
    before=("09 async_copy",),
    after=("10 pipeline 1", "10 pipeline 3", "10 pipeline 4"),
)
