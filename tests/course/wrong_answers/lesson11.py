"""Wrong answers to lesson 11: two roles on one tile, a barrier that orders nobody, edges and slots."""

from . import Wrong

LOAD = "if (loads) load_for(step + AHEAD);"
PV = "if (multiplies && step >= 2) accumulate_pv_of(step - 2, step % SLOTS);"
QK = "if (multiplies && step < tiles) multiply_qk_of(step, step % SLOTS);"
SOFTMAX = "if (exponentiates && step >= 1 && step <= tiles) softmax_of(step - 1);"
WAIT = "cp_async_wait<AHEAD - 1>()"
BARRIER = "__syncthreads();"

WRONG = (
    Wrong(
        "softmax_of_the_same_tile",
        "S is exponentiated in its own step.",
        ((SOFTMAX, "if (exponentiates && step < tiles) softmax_of(step);"),),
        (r"race.*s_smem", r"Two roles meet in one step"),
        cause="several places",
        line="if (exponentiates && step < tiles) softmax_of(step);",
    ),
    Wrong(
        "pv_one_step_early",
        "P is multiplied in the step in which it is computed.",
        (
            (
                "step >= 2) accumulate_pv_of(step - 2, step % SLOTS)",
                "step >= 1 && step <= tiles) accumulate_pv_of(step - 1, (step + 1) % SLOTS)",
            ),
        ),
        (r"race.*factor_smem", r"Two roles meet in one step"),
        "if (multiplies && step >= 1 && step <= tiles) accumulate_pv_of(step - 1, (step + 1) % SLOTS);",
        cause="several places",
    ),
    Wrong(
        "barrier_of_a_warp",
        "The plan's own remedy: __syncwarp orders the lanes of one warp.",
        ((BARRIER, "__syncwarp();"),),
        (r"race.*factor_smem.*no barrier between", r"Two roles meet in one step"),
        "__syncwarp();  // so are all parts, S and P; and what this step has read may be overwritten",
        cause="function",
    ),
    Wrong(
        "no_barrier",
        "Roles on different tiles need no barrier at all.",
        ((BARRIER, ""),),
        (r"race.*factor_smem.*no barrier between",),
        SOFTMAX,
        cause="barrier left out",
    ),
    Wrong(
        "a_barrier_a_role",
        "Three more barriers: right, and the roles take turns again.",
        ((PV, PV + "\n            __syncthreads();"), (QK, QK + "\n            __syncthreads();")),
        (r"barriers, counted once a warp", r"[Oo]ne barrier a step"),
        line="__syncthreads();",
        cause="extra barrier",
    ),
    Wrong(
        "slot_of_the_tile",
        "V of tile step - 2 is looked for in the slot of step - 2.",
        (("accumulate_pv_of(step - 2, step % SLOTS)", "accumulate_pv_of(step - 2, (step - 2) % SLOTS)"),),
        (r"uninitialised read.*v_smem", r"then at the slots"),
        line="if (multiplies && step >= 2) accumulate_pv_of(step - 2, (step - 2) % SLOTS);",
        cause="argument",
    ),
    Wrong(
        "loads_for_this_step",
        "The load warps fill the slot that is being read.",
        ((LOAD, "if (loads) load_for(step);"),),
        (r"missing wait.*k_smem", r"needed in step i \+ AHEAD"),
        line="if (loads) load_for(step);",
        cause="argument",
    ),
    Wrong(
        "loads_one_step_ahead",
        "One step ahead, and the wait lets it be unfinished.",
        ((LOAD, "if (loads) load_for(step + 1);"),),
        (r"race.*v_smem", r"in which buffer or slot"),
        line="if (loads) load_for(step + 1);",
        cause="argument",
    ),
    Wrong(
        "no_end",
        "The softmax warps go on after the last tile.",
        (("step >= 1 && step <= tiles", "step >= 1"),),
        (r"uninitialised read.*s_smem", r"the first and the last steps"),
        line="if (exponentiates && step >= 1) softmax_of(step - 1);",
        cause="condition",
    ),
    Wrong(
        "no_beginning",
        "The softmax warps begin before the first tile.",
        (("exponentiates && step >= 1 && step <= tiles", "exponentiates && step <= tiles"),),
        (r"uninitialised read", r"the first and the last steps"),
        line="if (exponentiates && step <= tiles) softmax_of(step - 1);",
        cause="condition",
    ),
    Wrong(
        "chained_comparison",
        "Python's 1 <= step <= tiles: in C++ it is true for every step.",
        (("step >= 1 && step <= tiles", "1 <= step <= tiles"),),
        (r"uninitialised read|chained comparison",),
        line="if (exponentiates && 1 <= step <= tiles) softmax_of(step - 1);",
        cause="refused",
    ),
    Wrong(
        "multiplies_too_far",
        "Q K^T of tiles that do not exist.",
        (("multiplies && step < tiles", "multiplies"),),
        (r"uninitialised read.*k_smem", r"the first and the last steps"),
        line="if (multiplies) multiply_qk_of(step, step % SLOTS);",
        cause="condition",
    ),
    Wrong(
        "waits_for_everything",
        "Right, and the copies have no step left to fly.",
        ((WAIT, "cp_async_wait<0>()"),),
        (r"groups of copies waited for at once", r"unfinished"),
        line="if constexpr (ASYNC) ptx::cp_async_wait<0>();  // this thread's part of the next is there",
        cause="template argument",
    ),
    Wrong(
        "waits_for_too_little",
        "AHEAD groups may be unfinished: the next step's is one of them.",
        ((WAIT, "cp_async_wait<AHEAD>()"),),
        (r"race.*v_smem|missing wait", r"slot|unfinished"),
        line="if constexpr (ASYNC) ptx::cp_async_wait<AHEAD>();  // this thread's part of the next is there",
        cause="template argument",
    ),
)
