"""Wrong answers to lesson 09: a wait too early, too late, for the wrong thing; a buffer too few."""

from . import Wrong

K_TILE = "const element* k_tile = k_smem + t % BUFFERS * KEYS * KV_LD;"
V_TILE = "const element* v_tile = v_smem + t % BUFFERS * KEYS * KV_LD;"
LOAD = "        load_keys_and_values(t + 1);\n"
WAIT = "        ptx::cp_async_wait<1>();"
BARRIER = "        __syncthreads();          //"
MULTIPLY = "if (warp < 6) multiply_qk(s_smem + s_row * S_LD + s_col, q_rmem, k_tile + s_col * KV_LD);"
LAST = "        __syncthreads();  // S is whole before a lane reads its row of it\n"

WRONG = (
    Wrong(
        "waits_for_everything",
        "Right, and nothing overlaps: the wait also covers the tile just asked for.",
        (("cp_async_wait<1>", "cp_async_wait<0>"),),
        (r"groups of copies waited for at once", r"stay under way"),
        line="ptx::cp_async_wait<0>();  // this thread's copies of tile t have arrived; those of t + 1 "
        "need not",
        cause="template argument",
    ),
    Wrong(
        "waits_for_too_little",
        "Two groups may be unfinished: tile t may be one of them.",
        (("cp_async_wait<1>", "cp_async_wait<2>"),),
        (r"missing wait.*k_smem", r"how many of them it lets be"),
        line="ptx::cp_async_wait<2>();  // this thread's copies of tile t have arrived; those of t + 1 "
        "need not",
        cause="template argument",
    ),
    Wrong(
        "wait_before_the_load",
        "The wait comes first: tile t is the newest group and may stay unfinished.",
        ((LOAD, ""), (WAIT, WAIT + "\n" + LOAD + "        ")),
        (r"missing wait.*k_smem", r"how many of them it lets be"),
        line="ptx::cp_async_wait<1>();",
        cause="order",
    ),
    Wrong(
        "no_wait",
        "The barrier is taken for a wait.",
        ((WAIT, "        "),),
        (r"missing wait.*k_smem",),
        line="if (warp < 6) multiply_qk(s_smem + s_row * S_LD + s_col, q_rmem, k_tile + s_col * KV_LD);",
        cause="wait left out",
    ),
    Wrong(
        "no_barrier_after_the_wait",
        "A thread waits for its own copies and reads those of others.",
        ((BARRIER, "        //"),),
        (r"race.*k_smem", r"a barrier of the whole block"),
        line="if (warp < 6) multiply_qk(s_smem + s_row * S_LD + s_col, q_rmem, k_tile + s_col * KV_LD);",
        cause="barrier left out",
    ),
    Wrong(
        "barrier_of_a_warp",
        "__syncwarp orders the lanes of one warp.",
        ((BARRIER, "        __syncwarp();  //"),),
        (r"race.*k_smem.*warp 1", r"a barrier of the whole block"),
        line="__syncwarp();  // every thread's have, before a warp reads what other warps copied",
        cause="function",
    ),
    Wrong(
        "no_barrier_after_s",
        "The softmax reads rows of S that another warp is still writing.",
        ((LAST, ""),),
        (r"race.*s_smem", r"Behind S"),
        line="if (warp < 6) multiply_qk(s_smem + s_row * S_LD + s_col, q_rmem, k_tile + s_col * KV_LD);",
        cause="barrier left out",
    ),
    Wrong(
        "one_buffer",
        "Every tile is read from the first buffer.",
        ((K_TILE, "const element* k_tile = k_smem;"), (V_TILE, "const element* v_tile = v_smem;")),
        (r"k_tile - k_smem.*where tile t of K begins", r"second time"),
        line="const element* k_tile = k_smem;",
        cause="value",
    ),
    Wrong(
        "v_of_the_next_tile",
        "V is taken from the buffer that is being filled.",
        ((V_TILE, "const element* v_tile = v_smem + (t + 1) % BUFFERS * KEYS * KV_LD;"),),
        (r"missing wait.*v_smem",),
        line="const element* v_tile = v_smem + (t + 1) % BUFFERS * KEYS * KV_LD;",
        cause="value",
    ),
    Wrong(
        "padding_forgotten",
        "Buffers are taken to be KEYS * D halves apart.",
        ((K_TILE, K_TILE.replace("KV_LD", "D")), (V_TILE, V_TILE.replace("KV_LD", "D"))),
        (r"uninitialised read.*k_smem", r"KEYS rows of KV_LD halves"),
        line="const element* k_tile = k_smem + t % BUFFERS * KEYS * D;",
        cause="value",
    ),
    Wrong(
        "same_tile_again",
        "The tile that is there is asked for once more.",
        (("load_keys_and_values(t + 1)", "load_keys_and_values(t)"),),
        (r"missing wait",),
        line="load_keys_and_values(t);",
        cause="argument",
    ),
    Wrong(
        "all_warps_multiply",
        "Warps 6 to 11 have no part of S.",
        (("if (warp < 6) multiply_qk", "multiply_qk"),),
        (r"uninitialised read", r"only warps 0 to 5"),
        line="multiply_qk(s_smem + s_row * S_LD + s_col, q_rmem, k_tile + s_col * KV_LD);",
        cause="condition left out",
    ),
    Wrong(
        "a_barrier_more",
        "A third barrier, before the wait.",
        ((WAIT, "        __syncthreads();\n" + WAIT),),
        (r"barriers, counted once a warp", r"[Tt]wo barriers are enough"),
        line="__syncthreads();",
        cause="extra barrier",
    ),
)
