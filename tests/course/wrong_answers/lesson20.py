"""Wrong answers to lesson 20: who comes last, and what it may read then."""

from . import Wrong

WHOLE = (
    "__syncthreads();  // the block's part is whole; O of all warps has been read and may be written over\n"
)
ONE = "if (cut.count == 1) continue;\n"
ELECT = "if (threadIdx.x == 0)\n"
KNOWN = "__syncthreads();  // all threads know whether it was the last, and see the parts that came before\n"
OTHERS = "if (!last_smem) continue;"
INSIDE = "if (row < rows.inside) lse_smem"
THERE = "__syncthreads();  // the parts' log-sum-exps are there"

WRONG = (
    Wrong(
        "arrives_too_early", "The thread that arrives has stored its own part, so the part is stored.",
        ((WHOLE, ""),),
        (r"a barrier",),
        "if (cut.count == 1) continue;",
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
        "if (!last_smem) continue;",
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
        (r"the value of `last_smem`, `atomicInc\(arrived \+ head \* gridDim\.z \+",),
        "last_smem = atomicInc(arrived + head * gridDim.z + blockIdx.z, cut.count - 1) ==",
        cause="value",
    ),
    Wrong(
        "everybody_arrives", "All threads have stored, so all arrive.",
        ((ELECT, ""),),
        (r"`last_smem = ptx::arrive_wrapping\(arrived \+ head \* gridDim\.z \+ bl",),
        "last_smem = ptx::arrive_wrapping(arrived + head * gridDim.z + blockIdx.z, cut.count - 1) ==",
        cause="condition left out",
    ),
    Wrong(
        "every_warp_arrives", "One lane of each warp arrives, as at an mbarrier.",
        ((ELECT, "if (lane == 0)\n"),),
        (r"the condition, `lane == 0`",),
        "if (lane == 0)",
        cause="condition",
    ),
    Wrong(
        "first_merges", "The counter was 0: this block may merge.",
        (("==\n                        cut.count - 1;", "== 0;"),),
        (r"the value of `last_smem`, `ptx::arrive_wrapping\(arrived \+ head \* gr",),
        "last_smem = ptx::arrive_wrapping(arrived + head * gridDim.z + blockIdx.z, cut.count - 1) == 0;",
        cause="value",
    ),
    Wrong(
        "counted_from_one", "The last of cut.count blocks gets cut.count.",
        (("==\n                        cut.count - 1;", "==\n                        cut.count;"),),
        (r"the value of `last_smem`, `ptx::arrive_wrapping\(arrived \+ head \* gr",),
        "cut.count;",
        cause="value",
    ),
    Wrong(
        "counter_left", "The counter is not needed any more, so it may count on.",
        (("blockIdx.z, cut.count - 1)", "blockIdx.z, cut.count)"),),
        (r"the second argument of `arrive_wrapping`, `cut\.count`",),
        "last_smem = ptx::arrive_wrapping(arrived + head * gridDim.z + blockIdx.z, cut.count) ==",
        cause="argument",
    ),
    Wrong(
        "single_part_leaves_first", "A request of one part needs no barrier.",
        ((WHOLE + "        " + ONE, ONE + "        " + WHOLE),),
        (r"`__syncthreads\(\);` comes too late\. Further up, and with the rest as",),
        (
            "__syncthreads();  // the block's part is whole; O of all warps has been read and"
            " may be written over"
        ),
        cause="order",
    ),
    Wrong(
        "single_part_arrives", "One part is a number of parts like any other.",
        (("        " + ONE, ""),),
        (r"a statement",),
        "if (row < rows.inside) lse_smem[number][row] = part_lse[part_row(number, row)];",
        cause="statement left out",
    ),
    Wrong(
        "return_for_continue", "A block that is not the last has nothing left to do.",
        ((OTHERS, "if (!last_smem) return;"),),
        (r"`return;`",),
        "if (!last_smem) return;",
        cause="statement",
    ),
    Wrong(
        "return_after_one_part", "A request of one part is done, and so is the block.",
        ((ONE, "if (cut.count == 1) return;\n"),),
        (r"`if \(cut\.count == 1\) return;`: what comes after it is not done\.",),
        "if (cut.count == 1) return;",
        cause="leaves",
    ),
    Wrong(
        "all_merge", "Every block merges what it finds; the last one overwrites the others.",
        (("        " + OTHERS + "\n", ""),),
        (r"`for \(int i = threadIdx\.x; i < cut\.count \* WARP_ROWS; i \+= THREADS\)`",),
        "for (int i = threadIdx.x; i < cut.count * WARP_ROWS; i += THREADS) {",
        cause="several places",
    ),
    Wrong(
        "counter_of_the_kv_head", "The counter is found by the K/V head.",
        (("arrived + head * gridDim.z", "arrived + h_kv * gridDim.z"),),
        (r"the first argument of `arrive_wrapping`, `arrived \+ h_kv \* gridDim\.",),
        "last_smem = ptx::arrive_wrapping(arrived + h_kv * gridDim.z + blockIdx.z, cut.count - 1) ==",
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
        (("i < cut.count * WARP_ROWS", "i < gridDim.x * WARP_ROWS"),),
        (r"what ends the loop, `i < gridDim\.x \* WARP_ROWS`",),
        "for (int i = threadIdx.x; i < gridDim.x * WARP_ROWS; i += THREADS) {",
        cause="loop bound",
    ),
    Wrong(
        "a_fourth_barrier", "One barrier more before the copies, to be on the safe side.",
        ((OTHERS + "\n", OTHERS + "\n        __syncthreads();\n"),),
        (r"counter is too high", r"barriers, counted once per warp",),
        "__syncthreads();",
        cause="barriers",
    ),
    Wrong(
        "everybody_leaves_alone", "Thread 0 knows that it was not last, and leaves.",
        ((KNOWN, "if (threadIdx.x == 0 && !last_smem) continue;\n        " + KNOWN),),
        (r"`if \(threadIdx\.x == 0 \&\& !last_smem\)` is too much",),
        "if (threadIdx.x == 0 && !last_smem) continue;",
        cause="extra condition",
    ),
)  # fmt: skip
