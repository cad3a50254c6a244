"""Lesson 25: what fuses into attention and what does not, by the merge of a norm's moments."""

from flashcore_numba.course.counters import in_file, of_line
from flashcore_numba.course.figures.fusing import at
from flashcore_numba.course.spec import Exercise, Explanation, Gate, Lesson, Question, Wanted

STAGE, THREE_HEADS, EIGHT_HEADS = "epilogue/norm", "1x3x64x64", "1x8x64x64"
MISSION = "1x8x512x64"
SMS = 132
ROUNDED = 2  # bytes of an element

EXERCISE = Exercise(
    stage=STAGE,
    file="row_norm.cuh",
    first="float4 parts[(SHARES + 3) / 4];",
    last="for (int r = 0; r < 2; r++) factor[r] = rsqrtf(quad_sum(squares[r]) / (2 * OWN * SHARES) + eps);",
    task="""\
The merge of a norm's moments. SHARES warps, of all blocks of a cluster, have 2 * OWN columns each of the same
16 rows. Each has told all blocks the mean and M2 of its columns, M2 = sum of (x - mean)^2. The messages are
here. Every warp executes these lines, for itself; lane 4g + t has parts of rows g and g + 8 of the warp's.

1. The messages of 8 quads and all shares are in moments_smem, at moments_at(share, lane / 4): a float4
   {mean, M2} of row g, then {mean, M2} of row g + 8. The four lanes of a quad want the same ones: lane t
   takes the shares t, t + 4, t + 8, ... and no others, and sums over a quad bring them together.
2. CENTRED, mean[r] becomes the mean of all columns: all shares have equally many, so it is the mean of the
   shares' means. Otherwise the norm is an RMSNorm, means are 0 in all messages, and mean[r] stays 0.
3. M2 of all columns is not the sum of the shares' M2, unless their means are equal: a share whose mean is
   `off` away from mean[r] adds 2 * OWN * off^2.
4. factor[r] = 1 / sqrt(M2 / number of columns + eps).
SHARES need not be a multiple of 4. `mean` and `factor` are declared before, and are 0.""",
    given={
        "SHARES, OWN, CENTRED": "constants: warps that share a row, up to 64; half of a warp's columns; "
        "whether the norm is LayerNorm",
        "moments_smem": "const float4*, shared: the messages for this warp's rows",
        "moments_at": "moments_at(share, g): the place of the message of `share` for rows g and g + 8",
        "mean, factor": "float[2]: of rows g and g + 8, to be set",
        "eps": "float, above 0",
        "lane": "int: 0 .. 31",
        "quad_sum": "quad_sum(x): the sum of x over the four lanes of the quad, for all four. All lanes must "
        "come to it",
        "rsqrtf": "rsqrtf(x): 1 / sqrt(x)",
        "make_float4": "make_float4(x, y, z, w): a float4, whose members are .x, .y, .z and .w",
    },
    wanted=(
        Wanted("mean[0]", "the mean of row g over all heads"),
        Wanted("mean[1]", "that of row g + 8"),
        Wanted("factor[0]", "1 / sqrt(variance + eps) of row g"),
        Wanted("factor[1]", "that of row g + 8"),
    ),
    hints=(
        "Two passes over the messages of a lane: the first adds up means, the second adds up squares, which "
        "need the mean of all. The messages are read once and stay in registers between the passes.",
        "A lane may have fewer shares than the others of its quad. It adds nothing for a share that is not "
        "there, and still comes to every quad_sum.",
        "M2 of all columns about the common mean is the sum over shares of M2_i + n (mean_i - mean)^2, with "
        "n the columns of a share. Members x and y of a message are row g's, z and w are row g + 8's.",
        "for (int i = 0; i < SHARES; i += 4): if (i + lane % 4 < SHARES) parts[i / 4] = "
        "moments_smem[moments_at(i + lane % 4, lane / 4)], else zeros; mean[0] += .x, mean[1] += .z. Then "
        "mean[r] = quad_sum(mean[r]) / SHARES. The second loop, for the shares that are there: squares[0] += "
        ".y + 2 * OWN * off * off with off = .x - mean[0], and .w and .z for row g + 8.",
    ),
    gates=(
        Gate(
            what="wavefronts of shared memory in reading the messages",
            value=of_line("moments_smem[", "load", "wavefronts"),
            before=None,
            right=192,
            bar=192,
            advice="Four lanes of a quad want the same messages: each reads every fourth, once, and keeps "
            "them for the second pass.",
            shape=THREE_HEADS,
        ),
        Gate(
            what="shuffles in sums and maxima of a quad",
            value=in_file("quad.cuh", "shuffle"),
            before=None,
            right=528,
            bar=528,
            advice="A quad sums once for the mean and once for the squares of each row: outside the loops.",
            shape=THREE_HEADS,
        ),
    ),
    advice={
        "warp mask": "A lane without a share in this turn must still come to quad_sum.",
        "value": "Which parts of the moments are a sum, which are a mean, and what do means that differ add?",
    },
)

QUESTIONS = (
    Question(
        key="saved",
        text="At 2x8x1024x64 in float16 a norm of its own reads the output of attention, which attention has "
        "written. How many KiB, written and read, are neither if the norm is in the same kernel?",
        unit="KiB",
        truth=lambda evidence: 2 * 2 * 8 * 1024 * 64 * ROUNDED / 1024,
        source="computed",
        why="16 heads x 1,024 rows x 64 columns x 2 bytes, once out and once in. It all stays in the L2 "
        "cache.",
    ),
    Question(
        key="told",
        text="Eight heads are a cluster of eight blocks, each with 64 rows of a head and two warpgroups. "
        "Every warp tells all eight blocks, its own too, mean and M2 of its columns, 16 bytes for two rows. "
        "How many bytes does a block send?",
        unit="bytes",
        truth=lambda evidence: evidence.count(STAGE, "store_async_bytes", EIGHT_HEADS) / 8,
        source="counted",
        why="8 warps x 8 pairs of rows x 16 bytes are 1,024, to each of 8 blocks.",
    ),
    Question(
        key="idle",
        text=f"At {MISSION} there are 8 tiles of 64 rows, and a head's block has all 512 keys of it. How "
        f"many of the {SMS} SMs have nothing to do?",
        unit="SMs",
        truth=lambda evidence: float(SMS - evidence.grid(STAGE, MISSION)),
        source="counted",
        why="8 tiles x 8 heads are 64 blocks. Stage 16 alone gives a head two blocks there, because two "
        "halves of the keys are done sooner than all.",
    ),
    Question(
        key="faster",
        text=f"Residual and LayerNorm after attention at {MISSION}: in the kernel of attention, or in a "
        "second launch, all in a CUDA graph. Which is faster?",
        unit="",
        truth=lambda evidence: "two launches" if at(MISSION).apart < at(MISSION).fused else "one launch",
        source="measured",
        why=f"{at(MISSION).fused:g} µs in one launch, {at(MISSION).apart:g} in two. The reason is the last "
        "section's question.",
        choices=("one launch", "two launches"),
    ),
)

LESSON = Lesson(
    number=25,
    file="25_what_fuses",
    title="What fuses, and what does not",
    idea="A kernel may go on with what it has in registers, at a price that is known before: what must be "
    "told, who waits, and where blocks may run.",
    exercise=EXERCISE,
    questions=QUESTIONS,
    explanation=Explanation(
        text=f"At {MISSION} the norm over all heads is slower in the kernel of attention than in a second "
        "launch. What takes the time?",
        right="blocks",
        feedback={
            "bytes": "No: fusing moves less. What it saves is 1 MiB, which the L2 cache moves in "
            "<!--calc 2**20 / recorded()[0]['ceilings']['l2_gbs'] / 1e3 | .1f--><!----> µs.",
            "messages": "They are <!--calc count('epilogue/norm', 'store_async_bytes', "
            "shape='1x8x64x64') / 8 | ,.0f--><!----> bytes per block, and one link of the chain. They cost "
            "something, but a second launch costs more than a link in the same kernel.",
            "blocks": "Yes, mostly. All heads of a row must be in one cluster, so a head has one block, and "
            "half of the SMs have none. Stage 16 with one block per head takes "
            "<!--us 16 one_block--><!----> µs, and with two <!--us 16 cluster_split--><!---->. That is more "
            "than an empty launch, <!--calc recorded()[0]['ceilings']['launch_us'] | .1f--><!----> µs.",
            "registers": "No: O is in registers anyway, and nothing is spilled. A norm keeps its weights and "
            "the residual there, which have room once S is not needed any more.",
        },
    ),
    figures={
        "timed": "One launch and two, as measured.",
        "barriers": "Barriers by source line.",
    },
    picture="row_of_heads",
)
