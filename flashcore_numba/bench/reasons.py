"""Why a GPU measures something else than the source says, by (stage, variant or "*", row of `reconcile`).

A test holds that every reason explains a difference of some recorded extract: what agrees needs none.
"""

__all__ = ["REASONS"]

MERGED = "The compiler merges equal loads of shared memory, so fewer instructions do the same work."
SPLIT = (
    "The compiler makes four 4-byte stores of a 16-byte one; each of them touches the same sectors again. "
    "The L2 cache gets every sector once."
)
STRADDLED = (
    "Every other row of the padded tile begins in the middle of a 32-byte sector of shared memory, so the L1 "
    "cache looks a source sector up again for an asynchronous copy that straddles two."
)

REASONS: dict[tuple[int, str, str], str] = {
    **{
        (6, variant, "shared load waves"): MERGED
        for variant in ("q_outer", "kv_outer_local", "kv_outer_shared")
    },
}
