"""Wrong answers to lesson 16: m and l told in the block and across the cluster."""

from . import Wrong

OWN_SUM = "l[0] = quad_sum(l[0]), l[1] = quad_sum(l[1]);"
BARRIER = "ptx::bar_sync(1 + WARPGROUPS + warp, 64);  // the two warps have told each other"
STATE = "const float state[4] = {m[0], m[1], l[0], l[1]};"
CLUSTER_WAIT = "ptx::cluster_wait();  // the other block has started, its mbarriers are initialised"
SENDER = "if (lane % 4 == 0)\n"

WRONG = (
    Wrong(
        "own_columns_only", "l is summed where the row is, and that is this lane.",
        ((OWN_SUM, ""),),
        (r"`l\[0\]`",),
    ),
    Wrong(
        "m_summed_too", "What a quad shares is summed over the quad, the reference too.",
        ((OWN_SUM, OWN_SUM + "\nm[0] = quad_sum(m[0]), m[1] = quad_sum(m[1]);"),),
        (r"`m\[0\]`",),
    ),
    Wrong(
        "no_barrier", "Two warps of one block run in step.",
        ((BARRIER, ""),),
        (r"race", r"near_smem", r"which barrier"),
    ),
    Wrong(
        "one_barrier_for_all", "A barrier of 64 threads is for two warps, whichever come.",
        (("1 + WARPGROUPS + warp", "1 + WARPGROUPS"),),
        (r"race", r"near_smem"),
    ),
    Wrong(
        "told_itself", "A box belongs to the warp that writes into it, and it reads it, too.",
        (("near_smem[other_box * 8", "near_smem[box * 8"),),
        (r"`m\[0\]`",),
    ),
    Wrong(
        "factors_swapped", "The order of two results is a matter of taste.",
        (("other, factor, other_factor)", "other, other_factor, factor)"),),
        (r"`factor\[0\]`",),
    ),
    Wrong(
        "no_cluster_wait", "Blocks of a cluster run together, so they start together.",
        ((CLUSTER_WAIT, ""),),
        (r"race|missing fence", r"far_full", r"started and made its mbarriers"),
    ),
    Wrong(
        "sent_before_the_join", "Each part speaks for itself, to its own block and to the others.",
        ((STATE, ""), ("if (WARPGROUPS > 1) {", STATE + "\nif (WARPGROUPS > 1) {")),
        (r"off by", r"whose m and l do you send"),
    ),
    Wrong(
        "everybody_sends", "A store with the same value four times does no harm.",
        ((SENDER, ""),),
        (r"missing wait|more arrivals|deadlock", r"one lane of a quad"),
    ),
    Wrong(
        "to_block_1", "The other block is block 1.",
        (("rank ^ 1);", "1);"),),
        (r"missing wait|deadlock", r"rank \^ 1"),
    ),
    Wrong(
        "to_the_next_block", "The other block is the next one.",
        (("rank ^ 1);", "rank + 1);"),),
        (r"the cluster has 2 blocks", r"rank \^ 1"),
    ),
    Wrong(
        "one_mbarrier_for_all", "One mbarrier counts for the whole block.",
        (("far_full + box", "far_full"),),
        (r"missing wait|deadlock", r"counts its bytes|less, or somebody"),
    ),
    Wrong(
        "no_wait_for_o", "The last product has had time enough.",
        (("ptx::wgmma_wait<0>();  // O is whole", ""),),
        (r"missing wait", r"the last product"),
    ),
    Wrong(
        "python_condition", "A condition as Python writes it.",
        (("if (lane % 4 == 0) near_smem", "if lane % 4 == 0: near_smem"),),
        (r"does not compile",),
    ),
)  # fmt: skip
