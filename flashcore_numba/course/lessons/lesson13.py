"""Lesson 13: parts of a softmax merge, so the keys can be shared out."""

from flashcore_numba.course.counters import total
from flashcore_numba.course.spec import Exercise, Explanation, Gate, Given, Lesson, Question, Wanted
from flashcore_numba.stages.edited import Edit

EXERCISE = Exercise(
    stage=13,
    file="stage13_split_kv.cu",
    variant="two_splits",
    first="float m = LOWEST, l = 0.0f;",
    last="for (int j = 0; j < 8; j++) o[j] *= inv_l;",
    task="""\
One row's parts become one. Part i comes from a set of keys that no other part has seen. It consists of
m_of(i): the reference that was subtracted, in units of log2; l_of(i): the sum of 2^(score - m_of(i))
over its keys; and its row of O, the sum of 2^(score - m_of(i)) * value. This thread merges 8 components
of that row: o_of(i, 0) points to the lower four as floats, o_of(i, 1) to the upper four. Leave
  - float m: the greatest of m_of(0) .. m_of(count - 1), and LOWEST when that is smaller still
  - float l: the sum of 2^(score - m) over the keys of all parts
  - o[0] .. o[7]: the output: the merged row of O divided by l; 0 when the row has seen no key (l == 0)
The same function merges the parts of the warps, in shared memory, and those of the splits, in global memory.
A part that has seen no key has l_of(i) == 0 and m_of(i) == LOWEST, or -INFINITY if it is a split's.
Read each part of O once, with two 16-byte loads.""",
    given={
        "o": "float[8], registers: zeros, written here",
        "count": "int: how many parts there are, 1 or more, the same for all threads",
        "m_of, l_of": "m_of(i), l_of(i): a float of part i, read from memory when you call it",
        "o_of": "o_of(i, upper): const float*, to the lower (upper = 0) or upper (1) four components of "
        "part i",
        "LOWEST": "float: the smallest finite number, about -3.4e38; LOWEST - LOWEST is 0, where -INFINITY "
        "- -INFINITY would be NaN",
        "ptx": "ptx::ex2(x): 2^x; 0 where x is -INFINITY or far below 0",
        "float4": "four floats x, y, z, w: *(const float4*)pointer loads them in one 16-byte access",
    },
    wanted=(
        Wanted("m", "the greatest m of the parts"),
        Wanted("l", "the sum of powers of all parts, for the new m"),
        Wanted("o[0]", "the first of the thread's 8 output components"),
        Wanted("o[7]", "the last of the thread's 8 output components"),
    ),
    hints=(
        "A part stands for the pair (l 2^m, O 2^m), and pairs add up. To add them as floats, give all parts "
        "one common m first: which one keeps every factor at most 1?",
        "Two loops over the parts. The first finds m. The second computes the factor of part i from m_of(i) "
        "and m, and adds factor * l_of(i) to l and factor * O to o. The factors do not depend on each "
        "other.",
        "Start m at LOWEST: then a row none of whose parts has seen a key gets factors of 2^0 or 2^-inf, and "
        "multiplies zeros with them. Divide only where l is not 0.",
        "weight = ptx::ex2(m_of(i) - m); const float4 lower = *(const float4*)o_of(i, 0), upper = ... (i, "
        "1); l += weight * l_of(i); o[0] += weight * lower.x; ... o[7] += weight * upper.w; after the loop "
        "inv_l = l == 0 ? 0.0f : 1.0f / l and o[j] *= inv_l for all 8.",
    ),
    gates=(
        Gate(
            what="requests of loads from shared memory",
            value=total("shared_load_requests"),
            before=576,
            right=1_280,
            bar=1_480,
            advice="Eight neighbouring floats are two 16-byte loads: look for floats that are loaded one at "
            "a time, or for a part of O that is read a second time.",
        ),
        Gate(
            what="wavefronts lost to bank conflicts",
            value=total("bank_conflicts"),
            before=0,
            right=0,
            bar=0,
            advice="The parts are laid out so that 16-byte loads of neighbouring threads meet no bank twice: "
            "look for loads of another width.",
        ),
        Gate(
            what="sectors loaded from global memory",
            value=total("global_load_sectors"),
            before=4_608,
            right=9_408,
            bar=9_500,
            advice="A split's part of O is 256 bytes per row, and it is needed once: look for a second loop "
            "that reads it.",
        ),
    ),
)

QUESTIONS = (
    Question(
        key="busy",
        text='Stage 12 gives 4x8x256x64 to <!--calc grid(12, "4x8x256x64")--><!----> blocks of '
        '<!--calc warps(12, "4x8x256x64")--><!----> warps; an H200 has 132 SMs with 4 schedulers each. '
        "What share "
        "of the schedulers has a warp, in percent?",
        unit="%",
        truth=lambda evidence: (
            100 * evidence.grid(12, "4x8x256x64") * evidence.warps(12, "4x8x256x64") / (132 * 4)
        ),
        source="computed",
        why="128 blocks of 4 warps are 512 warps for 528 schedulers: this problem has enough rows. Each "
        "scheduler has a tensor core of its own, so at 1x8x512x64 half of the tensor cores have nothing to "
        "do, however fast the other half is.",
    ),
    Question(
        key="merging",
        text="One head of 256 rows at D = 64: for every row each of the two key warps leaves an O of 64 "
        "float32 in shared memory, and the merge reads both. How many wavefronts of 128 bytes are these "
        "reads, if no bank is met twice?",
        unit="wavefronts",
        truth=lambda evidence: evidence.wavefronts(13, "*(const float4*)o_of", "load", "1x1x256x64"),
        source="counted",
        why="2 parts of 256 x 64 x 4 = 65,536 bytes are 131,072 bytes, 1,024 wavefronts of 128.",
    ),
    Question(
        key="microseconds",
        text="Stage 12 takes <!--us 12 mma_sync--><!----> µs at 1x8x512x64. Stage 13 gives every scheduler "
        "a warp with half of the keys, and merges. How many microseconds does it take?",
        unit="µs",
        truth=lambda evidence: evidence.us("13 split_kv"),
        source="measured",
        why="Not half: only what a warp does with its keys got shorter, and part of that is waiting. "
        "Starting, loading the first tile and storing stayed, the merge came on top.",
    ),
    Question(
        key="splits",
        text="Now every row tile is given to two blocks with half of the keys each; a second launch merges. "
        "At 1x8x512x64 that makes 256 blocks for 132 SMs. How many times as long as stage 13 without splits "
        "does it take?",
        unit="times",
        truth=lambda evidence: evidence.ratio("13 two_splits", "13 unsplit"),
        source="measured",
        why="The second launch alone costs more than the first one gains: it starts, reads what the first "
        "has just written, and ends.",
    ),
)

GIVEN = (
    Given(
        name="first_reference",
        story='"Any common reference gives the same quotient, so I need no loop that looks for the '
        "greatest: I "
        "take the first part's.\"",
        edits=(
            Edit(
                "for (int i = 0; i < count; i++) m = fmaxf(m, m_of(i));",
                "m = m_of(0);",
                "stage13_split_kv.cu",
            ),
        ),
        hints=(
            "On paper any reference will do. Which factors does a float not have?",
            "2^(m_of(1) - m_of(0)) is infinite from a difference of 128 on. In units of the scores that is "
            "128 * ln 2, about 89.",
            "Keys 64 and later belong to another warp's part. Make them 10 times as long as the early ones, "
            "and let a query row point at one of them.",
        ),
    ),
    Given(
        name="from_minus_infinity",
        story='"The maximum of no numbers is -INFINITY, so that is where m starts. LOWEST is a trick of '
        "somebody "
        'who does not trust infinities, and every row has a part with keys anyway."',
        edits=(Edit("float m = LOWEST, l = 0.0f;", "float m = -INFINITY, l = 0.0f;", "stage13_split_kv.cu"),),
        hints=(
            "Which m does a split leave for a row that has seen no key? And what is m_of(i) - m then?",
            "No values of q, k or v make a row without keys. Which mask and which shape do?",
            "causal=True with more query rows than keys: the first S_q - S_k rows see nothing.",
        ),
    ),
)

LESSON = Lesson(
    number=13,
    file="13_split_kv",
    title="Parts of a softmax",
    idea="A short problem has too few rows for a GPU: warps and blocks also share the keys, and merge.",
    exercise=EXERCISE,
    questions=QUESTIONS,
    explanation=Explanation(
        text="What limits stage 13 at 1x8x512x64 on the H200?",
        right="latency",
        feedback={
            "tensor": "No: the products alone would take <!--limit tensor--><!----> µs of the <!--us 13 "
            "split_kv"
            "--><!---->. Nsight Compute saw the tensor pipe start an instruction in "
            '<!--calc profiled(13, "tensor_pct") | .0f--><!----> % of the cycles.',
            "memory": "No: reading the inputs and writing the output once would take <!--limit "
            "memory--><!----> µs. "
            "Every block reads its head's whole K and V, all of it from the L2 cache, which was busy for "
            '<!--calc profiled(13, "l2_pct") | .0f--><!----> % (Nsight Compute). A causal mask halves '
            "these bytes, "
            "and the time stays: <!--us 13 split_kv causal--><!----> µs.",
            "exponentials": "No: they would take <!--limit exp--><!----> µs if the units were kept busy. "
            "They were "
            'busy for <!--calc profiled(13, "xu_pct") | .0f--><!----> % (Nsight Compute).',
            "shared": 'No: <!--calc (profiled(13, "shared_load_wavefronts") + profiled(13, '
            '"shared_store_wavefronts")) / 1e3 | .0f--><!---->,000 wavefronts on 128 SMs, one per clock '
            "at 1980 "
            'clocks per microsecond, are <!--calc (profiled(13, "shared_load_wavefronts") + profiled(13, '
            '"shared_store_wavefronts")) / 128 / 1980 | .1f--><!----> µs, and none of them is a conflict.',
            "latency": "Yes: no unit is busy, and the issue slots are used in "
            '<!--calc profiled(13, "issue_pct") | .0f--><!----> % of the cycles. A warp waits for its '
            "own last "
            "instruction, and there is one warp per scheduler, so no other warp has anything to do "
            "meanwhile. From "
            'length 128 to 512 each further step of 128 keys adds <!--calc (us("13 split_kv") - us("13 '
            'split_kv", '
            '"1x8x128x64")) / 3 | .2f--><!----> µs, while its '
            "exponentials need <!--calc 32 * 128 / 16 / 1980 | .2f--><!---->.",
        },
    ),
    figures={
        "parts": "The scores of one row tile, by the warp that computes them: stage 12, stage 13, two "
        "splits.",
        "schedules": "When which block of a causal problem runs: in order, longest first, persistent, in "
        "a model.",
        "wavefronts": "Wavefronts of shared memory by source line, conflicts hatched.",
        "barriers": "Barriers by source line, stage 12 and stage 13.",
        "roofline": "The stages so far, between the memory roof and the arithmetic roof.",
    },
    before=("12 mma_sync",),
    given=GIVEN,
)
