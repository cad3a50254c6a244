"""Wrong answers to lesson 19: four products, two releases, and the meeting of two warpgroups."""

from . import Wrong

FENCE = "ptx::fence_proxy_async();  // wgmma reads what this lane has stored,\n"
TOGETHER = "__syncwarp();              // and what the other lanes have\n"
STORED = "if (lane == 0) ptx::mbarrier_arrive(ds_full + step % 2);\n"
DV = "issue_pv(dv_rmem, p_rmem, do_tile, step > 0);\n"
DK = "issue_pv(dk_rmem, ds_rmem, q_tile, step > 0);\n"
NEXT_Q = "ptx::mbarrier_wait(q_full + next.number, next.parity);  // the next Q and lse2 are there\n"
S = "issue_qk(s_rmem, k_own, q_smem + next.number * Q_TILE);\n"
WAIT = "ptx::wgmma_wait<1>();  // dV and dK have read P, dS, Q and dO\n"
PIN_P = "ptx::wgmma_pin(p_rmem);\n"
FREE = "if (lane == 0) ptx::mbarrier_arrive(empty + slot);\n"
MET = "ptx::mbarrier_wait(ds_full + step % 2, step / 2 % 2);\n"

WRONG = (
    Wrong(
        "no_fence", "What is stored in shared memory can be read there.",
        ((FENCE, ""),),
        (r"missing fence", r"each lane that stored"),
        "issue_dq(ds_tile);",
        cause="fence left out",
    ),
    Wrong(
        "fence_after_the_arrival", "The fence belongs before the product that reads.",
        ((FENCE, ""), (STORED, STORED + FENCE)),
        (r"missing fence", r"comes too late"),
        "ptx::fence_proxy_async();  // wgmma reads what this lane has stored,",
        cause="order",
    ),
    Wrong(
        "no_syncwarp", "Lane 0 arrives when its own part is stored.",
        ((TOGETHER, ""),),
        (r"missing wait", r"`ds_smem`", r"a barrier"),
        "issue_dq(ds_tile);",
        cause="barrier left out",
    ),
    Wrong(
        "every_lane_arrives", "All lanes have stored, so all lanes say so.",
        ((STORED, "ptx::mbarrier_arrive(ds_full + step % 2);\n"),),
        (r"deadlock", r"ds_full\[0\]"),
        "ptx::mbarrier_arrive(ds_full + step % 2);",
        cause="condition left out",
    ),
    Wrong(
        "no_meeting", "dQ comes after three products, so dS is there.",
        ((MET, ""),),
        (r"missing wait", r"`ds_smem`"),
        "issue_dq(ds_tile);",
        cause="wait left out",
    ),
    Wrong(
        "parity_of_the_tile", "A phase per tile: its parity is that of the tile.",
        (("step / 2 % 2", "step % 2"),),
        (r"deadlock", r"`step % 2`"),
        "ptx::mbarrier_wait(ds_full + step % 2, step % 2);",
        cause="argument",
    ),
    Wrong(
        "next_q_not_awaited", "The loader is ahead by three tiles.",
        ((NEXT_Q, ""),),
        (r"missing wait", r"`q_smem`", r"a wait"),
        "issue_pv(dk_rmem, ds_rmem, q_tile, step > 0);",
        cause="wait left out",
    ),
    Wrong(
        "s_of_this_q", "S is K Q^T, and q_tile is Q.",
        (("q_smem + next.number * Q_TILE", "q_tile"),),
        (r"missing wait", r"the third argument of `issue_qk`"),
        "issue_qk(s_rmem, k_own, q_tile);",
        cause="argument",
    ),
    Wrong(
        "q_for_do", "dK and dV both read what comes with the tile.",
        (("dv_rmem, p_rmem, do_tile", "dv_rmem, p_rmem, q_tile"),),
        (r"`dv_rmem\[0\]`", r"the third argument of `issue_pv`"),
        "if (!DV_EARLY) issue_pv(dv_rmem, p_rmem, q_tile, step > 0);",
        cause="argument",
    ),
    Wrong(
        "p_for_ds", "P is the left operand of both.",
        (("dk_rmem, ds_rmem", "dk_rmem, p_rmem"),),
        (r"`dk_rmem\[0\]`", r"the second argument of `issue_pv`"),
        "issue_pv(dk_rmem, p_rmem, q_tile, step > 0);",
        cause="argument",
    ),
    Wrong(
        "sums_begin_anew", "Every tile has its own product.",
        ((DV, "issue_pv(dv_rmem, p_rmem, do_tile, false);\n"),),
        (r"`dv_rmem\[0\]`", r"the fourth argument of `issue_pv`"),
        "if (!DV_EARLY) issue_pv(dv_rmem, p_rmem, do_tile, false);",
        cause="argument",
    ),
    Wrong(
        "released_before_the_wait", "A product that was started has read Q and dO.",
        ((FREE, ""), (WAIT, FREE + WAIT)),
        (r"missing wait", r"`q_smem`"),
        "if (lane == 0) ptx::mbarrier_arrive(empty + slot);",
        cause="order",
    ),
    Wrong(
        "wait_for_two", "Three groups are under way, and the oldest is waited for.",
        ((WAIT, "ptx::wgmma_wait<2>();\n"),),
        (r"missing wait", r"what `wgmma_wait` has in angle brackets"),
        "ptx::wgmma_wait<2>();",
        cause="template argument",
    ),
    Wrong(
        "wait_for_all", "Products are waited for.",
        ((WAIT, "ptx::wgmma_wait<0>();\n"),),
        (r"no product of the warp under way", r"S of the next tile should be under way"),
        "ptx::wgmma_wait<0>();",
        cause="template argument",
    ),
    Wrong(
        "s_awaited", "S is needed next, so it is waited for.",
        ((FREE, FREE + "ptx::wgmma_wait<0>();\nptx::wgmma_pin(s_rmem);\n"),),
        (r"waits for products", r"is too much"),
        "ptx::wgmma_wait<0>();",
        cause="extra wait",
    ),
    Wrong(
        "not_released", "A slot that is not needed any more is free.",
        ((FREE, ""),),
        (r"deadlock", r"`empty\[0\]`", r"a call of `mbarrier_arrive`"),
        "ptx::mbarrier_wait(ds_full + step % 2, step / 2 % 2);",
        cause="several places",
    ),
    Wrong(
        "released_by_all_lanes", "All lanes have read, so all lanes say so.",
        ((FREE, "ptx::mbarrier_arrive(empty + slot);\n"),),
        (r"deadlock", r"without a condition"),
        "ptx::mbarrier_arrive(empty + slot);",
        cause="condition left out",
    ),
    Wrong(
        "dk_not_pinned", "A wait is enough for the compiler, too.",
        (("ptx::wgmma_pin(dk_rmem);\n", ""),),
        (r"Nothing pins `dk_rmem`",),
        "ptx::wgmma_wait<1>();  // dV and dK have read P, dS, Q and dO",
        cause="not pinned",
    ),
    Wrong(
        "dk_left_out", "dK is made with dQ, from the same dS.",
        ((DK, ""),),
        (r"uninitialised|dk_rmem", r"a call of `issue_pv`"),
        "if (!DV_EARLY) issue_pv(dv_rmem, p_rmem, do_tile, step > 0);",
        cause="call left out",
    ),
)  # fmt: skip
