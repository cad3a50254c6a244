"""Wrong answers to lesson 15: one turn of a warpgroup, between the others' turns and two rings."""

from . import Wrong

K_WAIT = "fetched(k_full, k_ring);\n"
V_WAIT = "fetched(v_full, v_ring);  // of the tile before\n"
BEGIN, END = "begin_turn();\n", "end_turn();\n"
S_WAIT = "ptx::wgmma_wait<OVERLAP>();  // S is whole\n"
O_WAIT = "ptx::wgmma_wait<0>();  // O is whole, P and V have been read\n"
FREE_K = "release(k_empty + k_ring.slot);\n"
FREE_V = "release(v_empty + v_ring.slot);\n"

WRONG = (
    Wrong(
        "no_turn", "The tensor cores sort out by themselves who comes first.",
        ((BEGIN, ""),),
        (r"a counter is too high.*without waiting for its turn", r"call begin_turn\(\) once"),
        line="ptx::wgmma_pin(o_rmem);  // O is rescaled before anything is in flight",
        cause="call left out",
    ),
    Wrong(
        "turn_through_softmax", "A turn is over when its results are there.",
        ((END, ""), (FREE_K, END + FREE_K)),
        (r"no product of its own under way", r"before you wait for them"),
        line="end_turn();",
        cause="order",
    ),
    Wrong(
        "turn_kept", "A turn ends by itself.",
        ((END, ""),),
        (r"deadlock", r"a turn that nobody hands on"),
        line="issue_pv(o_rmem, p_rmem, v_smem + v_ring.slot * KV_TILE);",
        cause="call left out",
    ),
    Wrong(
        "no_wait_for_k", "The loader is far ahead, K is there.",
        ((K_WAIT, ""),),
        (r"missing wait|race", r"k_smem", r"was it fetched"),
        line="const element* k_tile = k_smem + k_ring.slot * KV_TILE;",
        cause="wait left out",
    ),
    Wrong(
        "no_wait_for_v", "K of the next tile has come, so the V before it has.",
        ((V_WAIT, ""),),
        (r"missing wait|race", r"v_smem", r"was it fetched"),
        line="issue_qk(s_rmem, q_smem, k_tile);",
        cause="wait left out",
    ),
    Wrong(
        "no_wait_for_s", "The products are ready when they have been started.",
        ((S_WAIT, ""),),
        (r"missing wait", r"accumulator is read before wgmma.wait_group"),
        line="const bool done = lazy && exponentiate<true, POLYNOMIALS>(s_rmem, m, l, scale.log2);",
        cause="wait left out",
    ),
    Wrong(
        "one_wait_for_both", "The wait before the softmax is for both products.",
        ((O_WAIT, ""),),
        (r"missing wait", r"D = 128"),
        line="release(k_empty + k_ring.slot);",
        cause="wait left out",
    ),
    Wrong(
        "k_released_before_the_reference", "K has been read when S is whole.",
        ((FREE_K, ""), (S_WAIT, S_WAIT + FREE_K)),
        (r"missing wait|race", r"`k_smem`", r"a line below still reads it"),
        "release(k_empty + k_ring.slot);",
        cause="order",
    ),
    Wrong(
        "v_released_with_k", "Both slots are free when the softmax is over.",
        ((FREE_V, ""), (FREE_K, FREE_K + FREE_V)),
        (r"missing wait|race", r"v_smem"),
        line="release(v_empty + v_ring.slot);",
        cause="order",
    ),
    Wrong(
        "k_never_released", "A slot that is not needed any more is free.",
        ((FREE_K, ""),),
        (r"deadlock", r"has not released its slot"),
        line="}",
        cause="call left out",
    ),
    Wrong(
        "v_of_this_tile", "K and V of one tile have the same place of their rings.",
        (("v_smem + v_ring.slot * KV_TILE", "v_smem + k_ring.slot * KV_TILE"),),
        (r"missing wait|race", r"`v_smem`"),
        line="issue_pv(o_rmem, p_rmem, v_smem + k_ring.slot * KV_TILE);",
        cause="argument",
    ),
    Wrong(
        "v_ring_not_moved", "k_ring has moved already, so the rings have.",
        (("v_ring.next();", ""),),
        (r"`v_ring\.slot`", r"a call of `next`"),
        line="release(v_empty + v_ring.slot);",
        cause="call left out",
    ),
    Wrong(
        "released_by_the_next_slot", "After the turn the ring stands one further.",
        ((FREE_K, "k_ring.next();\n" + FREE_K),),
        (r"deadlock", r"one step of each ring"),
        line="k_ring.next();",
        cause="extra call",
    ),
    Wrong(
        "reference_kept", "The first tile's reference will do for all tiles.",
        (("exponentiate<true, POLYNOMIALS>", "exponentiate<false, POLYNOMIALS>"),),
        (r"`m\[0\]`", r"the reference of the thread's first row"),
        line="const bool done = lazy && exponentiate<false, POLYNOMIALS>(s_rmem, m, l, scale.log2);",
        cause="template argument",
    ),
    Wrong(
        "whole_by_its_keys", "A tile whose keys all count needs no mask, whatever the scale's sign.",
        (("tile < whole_tiles", "(tile + 1) * BLOCK_N <= mask.interval(group_row).end"),),
        (r"scale=-",),
        line="const bool lazy = LAZY_MAX && (tile + 1) * BLOCK_N <= mask.interval(group_row).end && "
            "scale_left == scale.log2;",
        cause="value",
    ),
    Wrong(
        "o_not_awaited", "P V is somebody else's concern: the next turn waits for it.",
        ((S_WAIT, "ptx::wgmma_wait<1>();\n"), (O_WAIT, "")),
        (r"missing wait", r"wgmma accumulator|left operand of a wgmma"),
        line="ptx::wgmma_wait<1>();",
        cause="template argument",
    ),
    Wrong(
        "o_not_pinned", "A wait is enough for the compiler, too.",
        ((O_WAIT + "            ptx::wgmma_pin(o_rmem);\n", O_WAIT),),
        ("Nothing pins `o_rmem`",),
        "ptx::wgmma_wait<0>();  // O is whole, P and V have been read", cause="not pinned",
    ),
)  # fmt: skip
