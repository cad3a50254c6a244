"""Wrong answers to lesson 14: the turn of one tile between mbarriers and wgmma."""

from . import Wrong

V_WAIT = "ptx::mbarrier_wait(v_full + slot, parity);  // V has arrived\n"
S_WAIT = "ptx::wgmma_wait<0>();  // S is whole\n"
O_WAIT = "ptx::wgmma_wait<0>();  // O is whole\n"
BARRIER = (
    "__syncthreads();  // every warp's products have read the slot that is filled again, and at the end Q\n"
)
REFILL = "if (threadIdx.x == 0 && tile + STAGES < tiles.end) load_keys(tile + STAGES);"
FOLLOW = "follow_reference(o_rmem, l, rescale);\n"

WRONG = (
    Wrong(
        "parity_of_the_tile", "The parity is taken from the tile's number, not from its round in the ring.",
        (("tile / STAGES % 2", "tile % 2"),),
        (r"missing wait", r"an older one of the same slot",),
        "issue_qk(s_rmem, q_smem, k_smem + slot * TILE);",
    ),
    Wrong(
        "parity_never_flips", "Every phase is waited for as if it were the first.",
        (("tile / STAGES % 2", "0"),),
        (r"missing wait", r"an older one of the same slot",),
        "issue_qk(s_rmem, q_smem, k_smem + slot * TILE);",
    ),
    Wrong(
        "no_wait_for_v", "K has arrived, so V must have.",
        ((V_WAIT, ""),),
        (r"missing wait", r"`v_smem`",),
        "issue_pv(o_rmem, p_rmem, v_smem + slot * TILE);",
    ),
    Wrong(
        "no_wait_for_s", "The scores are used as soon as their product has been started.",
        ((S_WAIT, ""),),
        (r"missing wait", r"accumulator is read before wgmma.wait_group",),
    ),
    Wrong(
        "no_wait_for_o", "The slot is given away while the product with V still reads it.",
        ((O_WAIT, ""),),
        (r"missing wait", r"its slot is filled again",),
    ),
    Wrong(
        "no_barrier", "One warp's wait is taken for all four.",
        ((BARRIER, ""),),
        (r"missing wait|race", r"all four warps",),
    ),
    Wrong(
        "refilled_after_s", "The next tile is asked for when K has been read, but V goes there too.",
        ((REFILL, ""), (S_WAIT, S_WAIT + "__syncthreads();\n" + REFILL + "\n")),
        (r"more arrivals than the 1|missing wait",),
    ),
    Wrong(
        "next_tile", "Asks for the next tile instead of the one that fits into this slot.",
        (("tile + STAGES < tiles.end) load_keys(tile + STAGES)", "tile + 1 < tiles.end) load_keys(tile + 1)"),),
        (r"more arrivals than the 1", r"Who calls load_keys",),
    ),
    Wrong(
        "everybody_asks", "All 128 threads ask for the next tile.",
        (("threadIdx.x == 0 && ", ""),),
        (r"more arrivals than the 1", r"Who calls load_keys",),
    ),
    Wrong(
        "o_not_rescaled", "A new reference concerns the tiles to come.",
        ((FOLLOW, ""),),
        (r"`l\[0\]`", r"`m\[0\]` is right there",),
    ),
    Wrong(
        "slot_in_halves", "The slot's number is added as if it were an offset in halves.",
        (("v_smem + slot * TILE", "v_smem + slot"),),
        ("misaligned", "multiple of 1024 bytes, this one 2 behind", r"slot \* TILE"),
        "issue_pv(o_rmem, p_rmem, v_smem + slot);",
    ),
    Wrong(
        "no_mask", "TMA fills up with zeros, and zeros add nothing.",
        (("first_key + BLOCK_N > mask.interval(warp_row).end || scale.sign != 1.0f", "scale.sign != 1.0f"),),
        (r"`l\[0\]`", r"`m\[0\]` is right there",),
    ),
    Wrong(
        "python_division", "The integer division of Python.",
        (("tile / STAGES % 2", "tile // STAGES % 2"),),
        (r"does not compile", r"`//` begins a comment"),
    ),
    Wrong(
        "one_thread_waits", "The thread that asks for the tiles waits for them; the others need not.",
        (("ptx::mbarrier_wait(v_full", "if (threadIdx.x == 0) ptx::mbarrier_wait(v_full"),),
        (r"missing wait", r"`v_smem`", r"warp [123]"),
        "issue_pv(o_rmem, p_rmem, v_smem + slot * TILE);",
    ),
    Wrong(
        "beyond_the_last_tile", "Tiles behind the last key arrive as zeros, so they may be asked for.",
        ((" && tile + STAGES < tiles.end", ""),),
        (r"a counter is too high", r"copies by TMA"),
    ),
)  # fmt: skip
