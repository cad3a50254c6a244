"""Why a GPU measures something else than the source says, by (key of the stage, variant or "*", row of
`reconcile`).

A test holds that every reason explains a difference of some recorded extract: what agrees needs none.
"""

MERGED = "The compiler merges equal loads of shared memory, so fewer instructions do the same work."
STRADDLED = (
    "Every other row of a padded tile begins in the middle of a 32-byte sector of shared memory: for an "
    "asynchronous copy whose source sector falls into two of them the L1 cache looks that sector up twice."
)
ZEROS = (
    "An asynchronous copy fills a row with zeros in one wavefront, as counted here, or in as many as a row "
    "takes that it reads: of the copies of a ragged tile some do the one and some the other."
)
REREAD = (
    "The compiler keeps a part's maximum, and in the merging kernel its log-sum, in a register; the source "
    "reads it again."
)
FEW_LANES = (
    "Eight lanes of a warp store m and l, one of each four: four wavefronts. Nsight Compute holds that "
    "against the one that 128 bytes would need from lanes that stand side by side."
)

REASONS: dict[tuple[str, str, str], str] = {
    ("register_tiles", "*", "shared load waves"): MERGED,
    **{
        (stage, "*", row): STRADDLED
        for stage in ("async_copy", "pipeline")
        for row in ("bytes loaded", "sectors per load")
    },
    **{
        ("warp_specialized", phase, row): STRADDLED
        for phase in "45"
        for row in ("bytes loaded", "sectors per load")
    },
    **{("pipeline", "*", row): ZEROS for row in ("shared store waves", "bank conflicts")},
    ("split_kv", "*", "shared load waves"): REREAD,
    ("split_kv", "two_splits", "sectors per load"): REREAD,
    ("cluster_split", "*", "bank conflicts"): FEW_LANES,
}
