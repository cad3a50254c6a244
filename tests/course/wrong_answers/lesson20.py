"""Wrong answers to lesson 20: who comes last, and what it may read then."""

from . import Wrong

WHOLE = (
    "__syncthreads();  // the block's part is whole; O of all warps has been read and may be written over\n"
)
ONE = "if (count == 1) return;\n"
ELECT = "if (threadIdx.x == 0) "
KNOWN = "__syncthreads();  // all threads know whether it was the last, and see the parts that came before\n"
OTHERS = "if (!last_smem) return;"
INSIDE = "if (row < rows.inside) lse_smem"
THERE = "__syncthreads();  // the parts' log-sum-exps are there"

WRONG = (
    Wrong(
        "arrives_too_early", "The thread that arrives has stored its own part, so the part is stored.",
        ((WHOLE, ""),),
        (r"a barrier",),
        "if (count == 1) return;",
        cause="barrier left out",
    ),
    Wrong(
        "barrier_of_a_warp", "The thread that arrives waits for its warp.",
        ((WHOLE, "__syncwarp();\n"),),
        (r"the function, `__syncwarp`",),
        "__syncwarp();",
        cause="function",
    ),
    Wrong(
        "answer_not_awaited", "last_smem is shared, so all threads see it.",
        ((KNOWN, ""),),
        (r"a barrier",),
        "if (!last_smem) return;",
        cause="barrier left out",
    ),
    Wrong(
        "lse_read_at_once", "Each thread copies LSEs, so they are there.",
        ((THERE, ""),),
        (r"a barrier",),
        "if (row < rows.inside) lse_smem[number][row] = part_lse[part_row(number, row)];",
        cause="barrier left out",
    ),
    Wrong(
        "plain_atomic", "An atomic is an atomic.",
        (("ptx::arrive_wrapping(", "atomicInc("),),
        (r"the value of `last_smem`, `atomicInc\(arrived, count - 1\)",),
        "if (threadIdx.x == 0) last_smem = atomicInc(arrived, count - 1) == count - 1;",
        cause="value",
    ),
    Wrong(
        "everybody_arrives", "All threads have stored, so all arrive.",
        ((ELECT, ""),),
        (r"`last_smem = ptx::arrive_wrapping\(arrived, count - 1\)",),
        "last_smem = ptx::arrive_wrapping(arrived, count - 1) == count - 1;",
        cause="condition left out",
    ),
    Wrong(
        "every_warp_arrives", "One lane of each warp arrives, as at an mbarrier.",
        ((ELECT, "if (threadIdx.x % 32 == 0) "),),
        (r"the condition, `threadIdx\.x % 32 == 0`",),
        "if (threadIdx.x % 32 == 0) last_smem = ptx::arrive_wrapping(arrived, count - 1) == count - 1;",
        cause="condition",
    ),
    Wrong(
        "first_merges", "The counter was 0: this block may merge.",
        (("== count - 1;", "== 0;"),),
        (r"the value of `last_smem`, `ptx::arrive_wrapping\(arrived, count - 1\)",),
        "if (threadIdx.x == 0) last_smem = ptx::arrive_wrapping(arrived, count - 1) == 0;",
        cause="value",
    ),
    Wrong(
        "counted_from_one", "The last of `count` blocks gets `count`.",
        (("== count - 1;", "== count;"),),
        (r"the value of `last_smem`, `ptx::arrive_wrapping\(arrived, count - 1\)",),
        "if (threadIdx.x == 0) last_smem = ptx::arrive_wrapping(arrived, count - 1) == count;",
        cause="value",
    ),
    Wrong(
        "counter_left", "The counter is not needed any more, so it may count on.",
        (("(arrived, count - 1)", "(arrived, count)"),),
        (r"the second argument of `arrive_wrapping`, `count`",),
        "if (threadIdx.x == 0) last_smem = ptx::arrive_wrapping(arrived, count) == count - 1;",
        cause="argument",
    ),
    Wrong(
        "single_part_leaves_first", "A request of one part needs no barrier.",
        ((WHOLE + "    " + ONE, ONE + "    " + WHOLE),),
        (r"`__syncthreads\(\);` comes too late\. Further up, and with the rest as",),
        (
            "__syncthreads();  // the block's part is whole; O of all warps has been read and"
            " may be written over"
        ),
        cause="order",
    ),
    Wrong(
        "single_part_arrives", "One part is a number of parts like any other.",
        (("    " + ONE, ""),),
        (r"a statement",),
        "ptx::cp_async_16(own_smem + number * 4 * THREADS, from);",
        cause="statement left out",
    ),
    Wrong(
        "all_merge", "Every block merges what it finds; the last one overwrites the others.",
        (("    " + OTHERS + "\n", ""),),
        (r"and a statement, which is missing after line 4 of your answer",),
        "float* own_smem = (float*)smem + 4 * threadIdx.x;  // [MAX_PARTS, THREADS, 4]: a thread's place",
        cause="several places",
    ),
    Wrong(
        "counter_of_the_part", "Each part has a counter of its own.",
        (("arrive_wrapping(arrived,", "arrive_wrapping(arrived + part,"),),
        (r"the first argument of `arrive_wrapping`, `arrived \+ part`",),
        "if (threadIdx.x == 0) last_smem = ptx::arrive_wrapping(arrived + part, count - 1) == count - 1;",
        cause="argument",
    ),
    Wrong(
        "own_part_again", "The LSE of this block's part is copied, for each part.",
        (("part_lse[part_row(number, row)]", "part_lse[part_row(part, row)]"),),
        (r"the first argument of `part_row`, `part`",),
        "if (row < rows.inside) lse_smem[number][row] = part_lse[part_row(part, row)];",
        cause="argument",
    ),
    Wrong(
        "all_rows", "A tile has WARP_ROWS rows.",
        ((INSIDE, "lse_smem"),),
        (r"`lse_smem\[number\]\[row\] = part_lse\[part_row\(number, row\)\];` run",),
        "lse_smem[number][row] = part_lse[part_row(number, row)];",
        cause="condition left out",
    ),
    Wrong(
        "parts_of_the_grid", "As many parts as there are blocks.",
        (("i < count * WARP_ROWS", "i < gridDim.x * WARP_ROWS"),),
        (r"what ends the loop, `i < gridDim\.x \* WARP_ROWS`",),
        "for (int i = threadIdx.x; i < gridDim.x * WARP_ROWS; i += THREADS) {",
        cause="loop bound",
    ),
    Wrong(
        "a_fourth_barrier", "One barrier more before the copies, to be on the safe side.",
        ((OTHERS + "\n", OTHERS + "\n    __syncthreads();\n"),),
        (r"counter is too high", r"barriers, counted once per warp",),
        "__syncthreads();",
        cause="barriers",
    ),
    Wrong(
        "everybody_leaves_alone", "Thread 0 knows that it was not last, and leaves.",
        ((KNOWN, "if (threadIdx.x == 0 && !last_smem) return;\n    " + KNOWN),),
        (r"`if \(threadIdx\.x == 0 \&\& !last_smem\)` is too much",),
        "if (threadIdx.x == 0 && !last_smem) return;",
        cause="extra condition",
    ),
)  # fmt: skip
