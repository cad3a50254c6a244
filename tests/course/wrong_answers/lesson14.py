"""Wrong answers to lesson 14: the turn of one tile between mbarriers and wgmma."""

from . import Wrong

V_WAIT = "ptx::mbarrier_wait(v_full + slot, parity);  // V has arrived\n"
S_WAIT = "ptx::wgmma_wait<0>();  // S is whole\n"
O_WAIT = "ptx::wgmma_wait<0>();  // O is whole\n"
BARRIER = (
    "__syncthreads();  // every warp's products have read the slot that is filled again, and at the end Q\n"
)
REFILL = "if (threadIdx.x == 0 && tile + STAGES < tiles.end) load_keys(tile + STAGES);"
FOLLOW = "rescale_o_and_l(o_rmem, l, rescale);\n"

# A right answer of its own build.
OWN_BUILD = """\
const int slot = tile % STAGES, parity = tile / STAGES % 2;
const int first_key = tile * BLOCK_N;
ptx::mbarrier_wait(k_full + slot, parity);
issue_qk(s_rmem, q_smem, k_smem + slot * TILE);
ptx::wgmma_wait<0>();
ptx::wgmma_pin(s_rmem);
if (first_key + BLOCK_N > mask.interval(warp_row).end || scale.sign != 1.0f) {
    const int row = warp_row + lane / 4;
    mask_tile(s_rmem, {mask.interval(row).from(first_key), mask.interval(row + 8).from(first_key)},
              scale.sign, lane);
}
const float scale_left = raise_max(s_rmem, m, rescale, scale.log2);
rescale_o_and_l(o_rmem, l, rescale);
exponentiate(p_rmem, s_rmem, m, l, scale_left);
ptx::mbarrier_wait(v_full + slot, parity);
issue_pv(o_rmem, p_rmem, v_smem + slot * TILE);
ptx::wgmma_wait<0>();
ptx::wgmma_pin(o_rmem);
__syncthreads();
if (threadIdx.x == 0 && tile + STAGES < tiles.end) load_keys(tile + STAGES);
"""
OWN_PARITY = ", parity = tile / STAGES % 2;\n"
OWN_RAISE = "const float scale_left = raise_max(s_rmem, m, rescale, scale.log2);\n"
OWN_V_WAIT = "ptx::mbarrier_wait(v_full + slot, parity);\n"
OWN_O_WAIT = "ptx::wgmma_wait<0>();\nptx::wgmma_pin(o_rmem);\n"
OWN_REFILL = "__syncthreads();\n" + REFILL + "\n"

WRONG = (
    Wrong(
        "parity_of_the_tile", "The parity is taken from the tile's number, not from its round in the ring.",
        (("tile / STAGES % 2", "tile % 2"),),
        (r"missing wait", r"an older one of the same slot",),
        "const int slot = tile % STAGES, parity = tile % 2, first_key = tile * BLOCK_N;",
        cause="value",
    ),
    Wrong(
        "parity_never_flips", "Every phase is waited for as if it were the first.",
        (("tile / STAGES % 2", "0"),),
        (r"missing wait", r"an older one of the same slot",),
        "const int slot = tile % STAGES, parity = 0, first_key = tile * BLOCK_N;",
        cause="value",
    ),
    Wrong(
        "no_wait_for_v", "K has arrived, so V must have.",
        ((V_WAIT, ""),),
        (r"missing wait", r"`v_smem`",),
        "issue_pv(o_rmem, p_rmem, v_smem + slot * TILE);",
        cause="wait left out",
    ),
    Wrong(
        "no_wait_for_s", "The scores are used as soon as their product has been started.",
        ((S_WAIT, ""),),
        (r"missing wait", r"accumulator is read before wgmma.wait_group",),
        line="mask_tile(s_rmem, {mask.interval(row).from(first_key), mask.interval(row + "
            "8).from(first_key)},",
        cause="wait left out",
    ),
    Wrong(
        "no_wait_for_o", "The slot is given away while the product with V still reads it.",
        ((O_WAIT, ""),),
        (r"missing wait", r"its slot is filled again",),
        line="issue_pv(o_rmem, p_rmem, v_smem + slot * TILE);",
        cause="wait left out",
    ),
    Wrong(
        "no_barrier", "One warp's wait is taken for all four.",
        ((BARRIER, ""),),
        (r"missing wait|race", r"all four warps",),
        line="issue_qk(s_rmem, q_smem, k_smem + slot * TILE);",
        cause="barrier left out",
    ),
    Wrong(
        "refilled_after_s", "The next tile is asked for when K has been read, but V goes there too.",
        ((REFILL, ""), (S_WAIT, S_WAIT + "__syncthreads();\n" + REFILL + "\n")),
        (r"more arrivals than the 1|missing wait",),
        line="if (threadIdx.x == 0 && tile + STAGES < tiles.end) load_keys(tile + STAGES);",
        cause="order",
    ),
    Wrong(
        "next_tile", "Asks for the next tile instead of the one that fits into this slot.",
        (("tile + STAGES < tiles.end) load_keys(tile + STAGES)",
          "tile + 1 < tiles.end) load_keys(tile + 1)"),),
        (r"more arrivals than the 1", r"Who calls load_keys",),
        line="if (threadIdx.x == 0 && tile + 1 < tiles.end) load_keys(tile + 1);",
        cause="condition",
    ),
    Wrong(
        "everybody_asks", "All 128 threads ask for the next tile.",
        (("threadIdx.x == 0 && ", ""),),
        (r"more arrivals than the 1", r"Who calls load_keys",),
        line="if (tile + STAGES < tiles.end) load_keys(tile + STAGES);",
        cause="condition",
    ),
    Wrong(
        "o_not_rescaled", "A new reference concerns the tiles to come.",
        ((FOLLOW, ""),),
        (r"`l\[0\]`", r"`m\[0\]` is right there",),
        line="const float scale_left = raise_max(s_rmem, m, rescale, scale.log2);",
        cause="nothing rescaled",
    ),
    Wrong(
        "slot_in_halves", "The slot's number is added as if it were an offset in halves.",
        (("v_smem + slot * TILE", "v_smem + slot"),),
        ("misaligned", "multiple of 1024 bytes, this one 2 behind", r"slot \* TILE"),
        "issue_pv(o_rmem, p_rmem, v_smem + slot);",
        cause="argument",
    ),
    Wrong(
        "no_mask", "TMA fills up with zeros, and zeros add nothing.",
        (("first_key + BLOCK_N > mask.interval(warp_row).end || scale.sign != 1.0f", "scale.sign != 1.0f"),),
        (r"`l\[0\]`", r"`m\[0\]` is right there",),
        line="if (scale.sign != 1.0f) {",
        cause="condition",
    ),
    Wrong(
        "sign_where_masked", "A tile whose keys all count is left as it is, whatever the scale's sign.",
        ((" || scale.sign != 1.0f", ""),),
        (r"scale=-",),
        line="if (first_key + BLOCK_N > mask.interval(warp_row).end) {",
        cause="condition",
    ),
    Wrong(
        "python_division", "The integer division of Python.",
        (("tile / STAGES % 2", "tile // STAGES % 2"),),
        (r"does not compile", r"`//` begins a comment"),
        line="const int slot = tile % STAGES, parity = tile // STAGES % 2, first_key = tile * BLOCK_N;",
        cause="does not compile",
    ),
    Wrong(
        "one_thread_waits", "The thread that asks for the tiles waits for them; the others need not.",
        (("ptx::mbarrier_wait(v_full", "if (threadIdx.x == 0) ptx::mbarrier_wait(v_full"),),
        (r"missing wait", r"`v_smem`", r"warp [123]"),
        "if (threadIdx.x == 0) ptx::mbarrier_wait(v_full + slot, parity);  // V has arrived",
        cause="extra condition",
    ),
    Wrong(
        "beyond_the_last_tile", "Tiles past the last key arrive as zeros, so they may be asked for.",
        ((" && tile + STAGES < tiles.end", ""),),
        (r"a counter is too high", r"copies by TMA"),
        line="if (threadIdx.x == 0) load_keys(tile + STAGES);",
        cause="condition",
    ),
    Wrong(
        "nothing_pinned", "A wait is enough for the compiler, too.",
        (("ptx::wgmma_pin(s_rmem);\n        ", ""), ("ptx::wgmma_pin(o_rmem);\n        ", ""),),
        ("Nothing pins `s_rmem`",),
        "ptx::wgmma_wait<0>();  // S is whole", cause="not pinned",
    ),
    Wrong(
        "a_barrier_of_the_warp",
        "Synchronises only the warp before thread 0 asks for the next tile; the other three "
            "warps may not have finished with the slot.",
        (
            ("__syncthreads();\n", "__syncwarp();  // everybody has left the slot\n"),
            (REFILL,
             "if (tile + STAGES < tiles.end && threadIdx.x == 0) {\n    load_keys(tile + STAGES);\n}"),
        ),
        (),
        "__syncwarp();  // everybody has left the slot",
        text=OWN_BUILD,
        cause="function",
    ),
    Wrong(
        "follow_after_the_weights",
        "Calls rescale_o_and_l after exponentiate, so the sums of the new weights are rescaled too.",
        (
            (OWN_RAISE + FOLLOW, OWN_RAISE.removeprefix("const ")),
            (OWN_V_WAIT, FOLLOW.replace("\n", "  // before O gets more\n") + OWN_V_WAIT),
        ),
        (),
        "rescale_o_and_l(o_rmem, l, rescale);  // before O gets more",
        text=OWN_BUILD,
        cause="arguments",
    ),
    Wrong(
        "k_stands_for_v",
        "Does not wait for V, because K and V of a tile are asked for together and K has arrived.",
        ((OWN_V_WAIT, ""),),
        (),
        "issue_pv(o_rmem, p_rmem, v_smem + slot * TILE);",
        text=OWN_BUILD,
        cause="wait left out",
    ),
    Wrong(
        "lane_0_asks",
        "Lets lane 0 of every warp ask: four threads request the same tile and announce its "
            "bytes four times.",
        ((REFILL, "const int next = tile + STAGES;\nif (next < tiles.end && lane == 0) load_keys(next);"),),
        (),
        "if (next < tiles.end && lane == 0) load_keys(next);",
        text=OWN_BUILD,
        cause="condition",
    ),
    Wrong(
        "parity_of_the_next_phase",
        "Waits with the parity of the next phase (inverted): wait(1) on a fresh mbarrier returns at once.",
        (
            (OWN_PARITY, ";\nconst int phase = (tile / STAGES + 1) & 1;\n"),
            ("k_full + slot, parity", "k_full + slot, phase"),
            ("v_full + slot, parity", "v_full + slot, phase"),
        ),
        (),
        "const int phase = (tile / STAGES + 1) & 1;",
        text=OWN_BUILD,
        cause="value",
    ),
    Wrong(
        "parity_of_the_tile_again",
        "Takes the parity from the number of the tile instead of from how often its slot has been filled.",
        ((OWN_PARITY, ";\nconst int parity = tile % 2;\n"),),
        (),
        "const int parity = tile % 2;",
        text=OWN_BUILD,
        cause="value",
    ),
    Wrong(
        "reference_before_mask",
        "Raises the reference before the mask: masked scores take part in the maximum, and "
            "scale.sign has not been applied yet.",
        ((OWN_RAISE, ""), ("if (first_key", OWN_RAISE + "if (first_key")),
        (),
        "const float scale_left = raise_max(s_rmem, m, rescale, scale.log2);",
        text=OWN_BUILD,
        cause="order",
    ),
    Wrong(
        "refill_under_the_product",
        "Asks for the next tile while P V may still read the slot: the barrier and the "
            "request come before wgmma_wait.",
        (
            (OWN_O_WAIT + OWN_REFILL,
             OWN_REFILL.rstrip() + "  // early: more time to arrive\n" + OWN_O_WAIT),
        ),
        (),
        "ptx::wgmma_wait<0>();",
        text=OWN_BUILD,
        cause="order",
    ),
)  # fmt: skip
