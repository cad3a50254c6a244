"""Lesson 08: both products on the tensor core, and what it costs that a fragment has no rows."""

from flashcore_numba.course.counters import total
from flashcore_numba.course.spec import Exercise, Explanation, Gate, Lesson, Question, Wanted

EXERCISE = Exercise(
    stage=8,
    file="stage08_wmma_full.cu",
    first="wmma::fragment<wmma::accumulator, 16, 16, 16, float> o;",
    last="wmma::store_matrix_sync(o_smem, o, O_LD, wmma::mem_row_major);",
    task="""\
One warp adds its part of P V: o_smem[16, 16] += p_smem[16, KEYS] v_smem[KEYS, 16]. KEYS = 32, so it is a sum
of two products of 16 x 16 tiles. What o_smem holds, the sum over all tiles so far, must stay in it.
All 32 lanes execute every line together: no line is for a single lane.

Load o once and store it once, whatever KEYS is.""",
    given={
        "o_smem": "float*, shared: this warp's 16 x 16 part of O; its rows are O_LD floats apart",
        "p_smem": "const element*, shared: 16 rows of P with KEYS columns; rows are P_LD halves apart",
        "v_smem": "const element*, shared: KEYS rows of V with 16 columns; rows are LD halves apart",
        "KEYS": "32, the keys of a tile",
        "O_LD, P_LD, LD": "72, 40, 72: elements from one row to the next of O, P and V",
        "wmma::fragment": "wmma::fragment<wmma::accumulator, 16, 16, 16, float> f; declares a sum, "
        "wmma::fragment<wmma::matrix_a, 16, 16, 16, element, wmma::row_major> f; a left operand; matrix_b is "
        "a right one. row_major: it is in memory row after row, as the product takes it; col_major: "
        "transposed",
        "wmma::load_matrix_sync": "wmma::load_matrix_sync(f, pointer, distance of rows); of an accumulator "
        "with a fourth argument, wmma::mem_row_major",
        "wmma::mma_sync": "wmma::mma_sync(d, a, b, c): d = a b + c; d may be c",
        "wmma::store_matrix_sync": "wmma::store_matrix_sync(pointer, f, distance of rows, "
        "wmma::mem_row_major)",
        "wmma::fill_fragment": "wmma::fill_fragment(f, x): every element of f is x",
    },
    wanted=(
        Wanted(
            "o_smem[threadIdx.x % 16 * O_LD + threadIdx.x / 16 % 2 * 8]",
            "an element in column 0 or 8 of the warp's part of O",
        ),
        Wanted(
            "o_smem[threadIdx.x % 16 * O_LD + threadIdx.x / 16 % 2 * 8 + 5]",
            "an element in column 5 or 13 of the warp's part of O",
        ),
    ),
    hints=(
        "It is multiply_qk with other tiles: declare an accumulator, loop over the inner dimension 16 at a "
        "time, load the two operands, multiply, and store the accumulator once after the loop. What is "
        "different: the sum does not start at 0.",
        "Begin with wmma::load_matrix_sync(o, o_smem, O_LD, wmma::mem_row_major) instead of fill_fragment: "
        "an accumulator says its layout when it is loaded, since its type does not.",
        "The inner dimension is the key. A step of 16 keys is 16 columns further in P, p_smem + key, and 16 "
        "rows further in V, v_smem + key * LD.",
        "P is matrix_a, row_major. V is matrix_b and is [key, component], as the multiplication takes it: "
        "row_major, where K had to be col_major. wmma::mma_sync(o, p, v, o), and after the loop "
        "store_matrix_sync(o_smem, o, O_LD, wmma::mem_row_major).",
    ),
    gates=(
        Gate(
            what="wavefronts of shared memory",
            value=total("shared_wavefronts"),
            before=23_168,
            right=11_648,
            bar=12_200,
            advice="Let mma_sync multiply, not lanes. A part of O costs 8 wavefronts to load and 8 to store: "
            "it should make that trip once per tile, not once per product.",
            cause="shared memory",
        ),
        Gate(
            what="products of the tensor core",
            value=total("mma"),
            before=256,
            right=512,
            bar=512,
            advice="A tile of 32 keys is two products of 16 keys for each part of O.",
        ),
        Gate(
            what="barriers, counted once per warp",
            value=total("barriers"),
            before=384,
            right=512,
            bar=512,
            advice="Between the kernel's third and fourth barrier nobody else touches this warp's part of "
            "O, and nobody writes P or V: nothing to wait for.",
        ),
    ),
    advice={
        "deadlock": "A fragment belongs to the whole warp: all 32 lanes come to every wmma line together. "
        "Which condition keeps some of them away?",
        "misaligned": "A 16 x 16 matrix starts at a multiple of 32 bytes, 16 halves or 8 floats: steps along "
        "the keys and the components are steps of 16.",
        "warp mask": "A fragment belongs to the whole warp: every wmma line must be reached by all 32 lanes "
        "together, with the same arguments.",
        "uninitialised read": "A fragment holds nothing until it is loaded or filled. A load that reads "
        "padding has a wrong stride or start, or its loop runs too far: rows of P are P_LD apart and rows of "
        "V LD; a step of 16 keys moves along a row of P but down the rows of V.",
        "out of bounds": "A step of 16 keys moves along a row of P but down the rows of V. Which of the two "
        "pointers went the wrong way?",
    },
)

LESSON = Lesson(
    number=8,
    file="08_wmma_full",
    title="Both products on the tensor core",
    idea="A fragment is one thing that 32 lanes hold together, and it has no rows: what needs rows goes "
    "through shared memory.",
    exercise=EXERCISE,
    questions=(
        Question(
            key="wavefronts",
            text="Stage 07 needs <!--count 7 shared_wavefronts--><!----> wavefronts of shared memory at "
            "1x1x128x64, loads and stores. In stage 08 the tensor core also multiplies P by V, 16 x 16 "
            "halves in 4 wavefronts; P and O are now in shared memory. How many wavefronts does stage 08 "
            "need?",
            unit="wavefronts",
            truth=lambda evidence: evidence.count(8, "shared_wavefronts"),
            source="counted",
            why="P V by lanes was "
            '<!--calc wavefronts(7, "const uint4*>") + wavefronts(7, "p_row + key") | ,.0f--><!---->'
            " wavefronts for its loads alone. The tensor core reads P and V in "
            '<!--calc wavefronts(8, "load_matrix_sync(p") + wavefronts(8, "load_matrix_sync(v") | ,.0f-->'
            "<!---->, and the trips of P and O cost most of what is left.",
        ),
        Question(
            key="crowd",
            text="The shape 4x8x256x64 has as many multiply-adds as the mission shape, in 256 blocks of 8 "
            "tiles instead of 128 blocks of 16. An SM has room for two blocks of stage 08. Divide the time "
            "there by the time at the mission shape: how much is it?",
            unit="",
            truth=lambda evidence: evidence.us("08 wmma_full", "4x8x256x64") / evidence.us("08 wmma_full"),
            source="measured",
            why="Two blocks on an SM wait for different things at different moments: when one waits, the "
            "other may run.",
        ),
        Question(
            key="instructions",
            text="How many times fewer instructions do the warps of stage 08 issue than those of stage 07, "
            "at the mission shape?",
            unit="times",
            truth=lambda evidence: (
                evidence.profiled(7, "instructions") / evidence.profiled(8, "instructions")
            ),
            source="measured",
            why='In a tile a warp of stage 07 issues about <!--calc profiled(7, "instructions") / 16384 | '
            ".0f--><!---->, most of them for P V by lanes; stage 08 is left with <!--calc profiled(8, "
            '"instructions") / 16384 | .0f--><!---->.',
        ),
        Question(
            key="microseconds",
            text="Stage 07 takes <!--us 07 wmma_qk--><!----> µs at 1x8x512x64 on the H200. How long does "
            "stage 08 take?",
            unit="µs",
            truth=lambda evidence: evidence.us("08 wmma_full"),
            source="measured",
            why="Half the wavefronts and a fourth of the instructions, but <!--ratio 07 wmma_qk / 08 "
            "wmma_full--><!----> times the speed: something else takes the time now.",
        ),
    ),
    explanation=Explanation(
        text="What sets the time of stage 08 at the mission shape, 1x8x512x64 on the H200?",
        right="phases",
        feedback={
            "phases": 'Yes: no unit is near its limit, and a tile still takes about <!--calc us("08 '
            'wmma_full") / 16 * 1980 | ,.0f--><!----> cycles. Load, Q K^T, softmax and P V wait for each '
            "other at four barriers, so their latencies add up. The same work in twice as many blocks, "
            "4x8x256x64, takes <!--us 08 wmma_full @4x8x256x64--><!----> µs: when one block waits, the "
            "other works.",
            "tensor_core": "No: both products need <!--limit tensor--><!----> µs, and it starts <!--calc "
            'profiled(8, "tensor_pct") | .1f--><!----> % of the instructions it could.',
            "shared_memory": 'Not yet: its wavefronts would fill <!--calc 8 * count(8, "shared_wavefronts", '
            '"1x1x512x64") / 128 / 1980 | .1f--><!----> µs of <!--us 08 wmma_full--><!---->. It is the next '
            "limit, should the waiting end.",
            "instructions": 'No: the schedulers issued in <!--calc profiled(8, "issue_pct") | .1f--><!----> '
            "% of the cycles.",
            "memory": "Not its speed: all bytes take <!--limit memory--><!----> µs. Its latency is part of "
            "the answer: a tile's loads are waited for with nothing else to do.",
        },
    ),
    figures={
        "wmma": "Who holds which element of a fragment, in two runs: not specified, so drawn anew in each.",
        "round_trip": "A tile between fragments, shared memory and rows: what each leg of its way costs.",
        "wavefronts": "Wavefronts of shared memory by source line.",
        "barriers": "Barriers by source line, beside those of stage 07.",
        "memory": "What lies where in a block's shared memory.",
    },
    before=("07 wmma_qk",),
    after=("SDPA flash", "SDPA cuDNN"),
)
