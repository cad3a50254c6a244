"""Wrong answers to lesson 16: m and l told in the block and across the cluster."""

from . import Wrong

OWN_SUM = "l[0] = quad_sum(l[0]), l[1] = quad_sum(l[1]);"
BARRIER = "ptx::bar_sync(1 + WARPGROUPS + warp, 64);  // the two warps have told each other"
STATE = "const float state[4] = {m[0], m[1], l[0], l[1]};"
CLUSTER_WAIT = "ptx::cluster_wait();  // the other block has started, its mbarriers are initialised"
FINISHED = "    ptx::wgmma_wait<0>();  // O is whole\n    ptx::wgmma_pin(o_rmem);\n"
SENDER = "if (lane % 4 == 0)\n"

# A right answer of its own build.
OWN_BUILD = """\
RowState factor = {1.0f, 1.0f}, other_factor = {1.0f, 1.0f};
const int quad = lane / 4;
l[0] = quad_sum(l[0]), l[1] = quad_sum(l[1]);
if (WARPGROUPS > 1) {
    if (lane % 4 == 0) near_smem[other_box * 8 + quad] = make_float4(m[0], m[1], l[0], l[1]);
    ptx::bar_sync(1 + WARPGROUPS + warp, 64);
    join(m, l, near_smem[box * 8 + quad], factor, other_factor);
}
if (CLUSTER > 1) {
    ptx::cluster_wait();
    const float x[4] = {m[0], m[1], l[0], l[1]};
    if (lane % 4 == 0) ptx::store_async(far_smem + box * 8 + quad, x, far_full + box, rank ^ 1);
}
ptx::wgmma_wait<0>();
ptx::wgmma_pin(o_rmem);
"""
OWN_STATE = "const float x[4] = {m[0], m[1], l[0], l[1]};"

WRONG = (
    Wrong(
        "own_columns_only", "l is summed where the row is, and that is this lane.",
        ((OWN_SUM, ""),),
        (r"`l\[0\]`",),
        line="RowState factor, other_factor = {};",
        cause="assignment left out",
    ),
    Wrong(
        "m_summed_too", "What a quad shares is summed over the quad, the reference too.",
        ((OWN_SUM, OWN_SUM + "\nm[0] = quad_sum(m[0]), m[1] = quad_sum(m[1]);"),),
        (r"`m\[0\]`",),
        line="m[0] = quad_sum(m[0]), m[1] = quad_sum(m[1]);",
        cause="extra assignment",
    ),
    Wrong(
        "no_barrier", "Two warps of one block run in step.",
        ((BARRIER, ""),),
        (r"race", r"near_smem", r"which barrier"),
        line="const float4 other = near_smem[box * 8 + lane / 4];",
        cause="barrier left out",
    ),
    Wrong(
        "one_barrier_for_all", "A barrier of 64 threads is for two warps, whichever come.",
        (("1 + WARPGROUPS + warp", "1 + WARPGROUPS"),),
        (r"race", r"near_smem"),
        line="ptx::bar_sync(1 + WARPGROUPS, 64);  // the two warps have told each other",
        cause="argument",
    ),
    Wrong(
        "told_itself", "A box belongs to the warp that writes into it, and it reads it, too.",
        (("near_smem[other_box * 8", "near_smem[box * 8"),),
        (r"`m\[0\]`",),
        line="if (lane % 4 == 0) near_smem[box * 8 + lane / 4] = make_float4(m[0], m[1], l[0], l[1]);",
        cause="index",
    ),
    Wrong(
        "factors_swapped", "The order of two results is a matter of taste.",
        (("other, factor, other_factor)", "other, other_factor, factor)"),),
        (r"`factor\[0\]`",),
        line="join(m, l, other, other_factor, factor);",
        cause="arguments",
    ),
    Wrong(
        "no_cluster_wait", "Blocks of a cluster run together, so they start together.",
        ((CLUSTER_WAIT, ""),),
        (r"race|missing fence", r"far_full", r"started and made its mbarriers"),
        line="ptx::store_async(far_smem + box * 8 + lane / 4, state, far_full + box, rank ^ 1);",
        cause="wait left out",
    ),
    Wrong(
        "sent_before_the_join", "Each part speaks for itself, to its own block and to the others.",
        ((STATE, ""), ("if (WARPGROUPS > 1) {", STATE + "\nif (WARPGROUPS > 1) {")),
        (r"off by", r"comes too early"),
        line="const float state[4] = {m[0], m[1], l[0], l[1]};",
        cause="order",
    ),
    Wrong(
        "everybody_sends", "A store with the same value four times does no harm.",
        ((SENDER, ""),),
        (r"Two asynchronous copies or stores", r"one lane of a quad"),
        line="ptx::store_async(far_smem + box * 8 + lane / 4, state, far_full + box, rank ^ 1);",
        cause="condition left out",
    ),
    Wrong(
        "to_block_1", "The other block is block 1.",
        (("rank ^ 1);", "1);"),),
        (r"Two asynchronous copies or stores", r"rank \^ 1"),
        line="ptx::store_async(far_smem + box * 8 + lane / 4, state, far_full + box, 1);",
        cause="argument",
    ),
    Wrong(
        "to_the_next_block", "The other block is the next one.",
        (("rank ^ 1);", "rank + 1);"),),
        (r"the cluster has 2 blocks", r"rank \^ 1"),
        line="ptx::store_async(far_smem + box * 8 + lane / 4, state, far_full + box, rank + 1);",
        cause="argument",
    ),
    Wrong(
        "one_mbarrier_for_all", "One mbarrier counts for the whole block.",
        (("far_full + box", "far_full"),),
        (r"missing wait|deadlock", r"counts its bytes|less, or somebody"),
        line="ptx::store_async(far_smem + box * 8 + lane / 4, state, far_full, rank ^ 1);",
        cause="argument",
    ),
    Wrong(
        "no_wait_for_o", "The last product has had time enough.",
        (("ptx::wgmma_wait<0>();  // O is whole", ""),),
        (r"missing wait", r"the last product"),
        line="}",
        cause="wait left out",
    ),
    Wrong(
        "python_condition", "A condition as Python writes it.",
        (("if (lane % 4 == 0) near_smem", "if lane % 4 == 0: near_smem"),),
        (r"does not compile",),
        line="if lane % 4 == 0: near_smem[other_box * 8 + lane / 4] = make_float4(m[0], m[1], l[0], l[1]);",
        cause="does not compile",
    ),
    Wrong(
        "to_this_block", "The other block is the one that runs this.",
        (("rank ^ 1);", "rank);"),),
        ("the fourth argument of `store_async`",),
        "ptx::store_async(far_smem + box * 8 + lane / 4, state, far_full + box, rank);", cause="argument",
    ),
    Wrong(
        "waits_first", "O is finished before anything is told.",
        ((FINISHED, ""), ("    RowState factor,", FINISHED + "    RowState factor,")),
        ("comes too early",),
        "ptx::wgmma_wait<0>();  // O is whole", cause="nothing under way",
    ),
    Wrong(
        "barrier_of_the_block", "The two warps meet where all warps meet.",
        (("ptx::bar_sync(1 + WARPGROUPS + warp, 64);", "__syncthreads();"),),
        ("counter is too high",),
        "__syncthreads();  // the two warps have told each other", cause="wide barrier",
    ),
    Wrong(
        "barrier_of_the_warpgroup",
        "Waits at a barrier of its own warpgroup, 128 threads, instead of one with the warp "
            "of the other warpgroup that writes for it.",
        (("1 + WARPGROUPS + warp, 64", "1 + box / 4, 128"),),
        (),
        "ptx::bar_sync(1 + box / 4, 128);",
        text=OWN_BUILD,
        cause="arguments",
    ),
    Wrong(
        "cluster_wait_by_the_sender",
        "Lets only the sending lanes wait for the cluster, although the cluster barrier is "
            "one for all threads.",
        (),
        (),
        "ptx::cluster_wait();",
        text="""\
RowState factor = {1.0f, 1.0f}, other_factor = {1.0f, 1.0f};
for (int r = 0; r < 2; r++) l[r] = quad_sum(l[r]);
if (WARPGROUPS > 1) {
    if (!(lane & 3)) near_smem[other_box * 8 + lane / 4] = make_float4(m[0], m[1], l[0], l[1]);
    ptx::bar_sync(1 + WARPGROUPS + warp, 64);
    const float4 partner = near_smem[box * 8 + lane / 4];
    join(m, l, partner, factor, other_factor);
}
if (CLUSTER > 1)
    if (lane % 4 == 0) {
        ptx::cluster_wait();
        const float x[4] = {m[0], m[1], l[0], l[1]};
        ptx::store_async(far_smem + box * 8 + lane / 4, x, far_full + box, rank ^ 1);
    }
ptx::wgmma_wait<0>();
ptx::wgmma_pin(o_rmem);
""",
        cause="reported: warp mask",
    ),
    Wrong(
        "every_lane_tells",
        "All 32 lanes send, four for each quad: 512 bytes where 128 were announced, and each "
            "place is written four times.",
        (("if (lane % 4 == 0) ptx::", "ptx::"),),
        (),
        "ptx::store_async(far_smem + box * 8 + quad, x, far_full + box, rank ^ 1);",
        text=OWN_BUILD,
        cause="condition left out",
    ),
    Wrong(
        "factors_exchanged",
        "Exchanges the two factors in join: this part's O gets the other's factor.",
        (("factor, other_factor)", "other_factor, factor)"),),
        (),
        "join(m, l, near_smem[box * 8 + quad], other_factor, factor);",
        text=OWN_BUILD,
        cause="arguments",
    ),
    Wrong(
        "no_wait_for_the_cluster",
        "Sends without cluster_wait: the other block may not have begun or made its mbarriers.",
        (("    ptx::cluster_wait();", ""),),
        (),
        "if (lane % 4 == 0) ptx::store_async(far_smem + box * 8 + quad, x, far_full + box, rank ^ 1);",
        text=OWN_BUILD,
        cause="wait left out",
    ),
    Wrong(
        "quad_sum_at_the_end",
        "Adds l over the quad after the join: lane 0's own part went to the other warpgroup, "
            "and the other part's l is counted once for each lane.",
        ((OWN_SUM + "\n", ""), ("if (CLUSTER", OWN_SUM + "  // the whole row\nif (CLUSTER")),
        (),
        "l[0] = quad_sum(l[0]), l[1] = quad_sum(l[1]);  // the whole row",
        text=OWN_BUILD,
        cause="order",
    ),
    Wrong(
        "reads_what_it_wrote",
        "Reads the place that it has written itself, near_smem of the other box, instead of "
            "its own box: it joins itself.",
        (("near_smem[box", "near_smem[other_box"),),
        (),
        "join(m, l, near_smem[other_box * 8 + quad], factor, other_factor);",
        text=OWN_BUILD,
        cause="index",
    ),
    Wrong(
        "sends_to_itself",
        "Sends to its own block, rank, instead of to the other one, rank ^ 1.",
        (),
        (),
        "ptx::store_async(far_smem + box * 8 + lane / 4, x, far_full + box, rank);",
        text="""\
RowState factor = {1.0f, 1.0f}, other_factor = {1.0f, 1.0f};
for (int r = 0; r < 2; r++) l[r] = quad_sum(l[r]);
if (WARPGROUPS > 1) {
    if (lane % 4 == 0) near_smem[other_box * 8 + lane / 4] = make_float4(m[0], m[1], l[0], l[1]);
    ptx::bar_sync(1 + WARPGROUPS + warp, 64);
    const float4 other = near_smem[box * 8 + lane / 4];
    join(m, l, other, factor, other_factor);
}
if (CLUSTER > 1) {
    ptx::cluster_wait();
    const float x[4] = {m[0], m[1], l[0], l[1]};
    if (lane % 4 == 0)
        ptx::store_async(far_smem + box * 8 + lane / 4, x, far_full + box, rank);
}
ptx::wgmma_wait<0>();
ptx::wgmma_pin(o_rmem);
""",
        cause="argument",
    ),
    Wrong(
        "tells_its_own_part",
        "Sends to the other block the m and l of its own part, taken before the join, not "
            "those of both parts of the block.",
        (
            ("    " + OWN_STATE + "\n", ""),
            ("if (WARPGROUPS", OWN_STATE + "  // what the other block must know\nif (WARPGROUPS"),
        ),
        (),
        "const float x[4] = {m[0], m[1], l[0], l[1]};  // what the other block must know",
        text=OWN_BUILD,
        cause="order",
    ),
    Wrong(
        "waits_only_for_its_reader",
        "Waits for the last P V only inside the branch of the cluster, after the message, "
            "and pins nothing: with one block per cluster O is never waited for.",
        (),
        (),
        "ptx::wgmma_wait<0>();",
        text="""\
RowState factor = {1.0f, 1.0f}, other_factor = {1.0f, 1.0f};
l[0] = quad_sum(l[0]);
l[1] = quad_sum(l[1]);
if (WARPGROUPS > 1) {
    if (lane % 4 == 0) near_smem[other_box * 8 + lane / 4] = make_float4(m[0], m[1], l[0], l[1]);
    ptx::bar_sync(1 + WARPGROUPS + warp, 64);
    join(m, l, near_smem[box * 8 + lane / 4], factor, other_factor);
}
if (CLUSTER > 1) {
    ptx::cluster_wait();
    float x[4] = {m[0], m[1], l[0], l[1]};
    if (lane % 4 == 0) ptx::store_async(far_smem + box * 8 + lane / 4, x, far_full + box, rank ^ 1);
    ptx::wgmma_wait<0>();
}
""",
        cause="not pinned",
    ),
)  # fmt: skip
