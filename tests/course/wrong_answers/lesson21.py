"""Wrong answers to lesson 21: a tile of keys, found through the block table."""

from . import Wrong

KEYS = "keys = min(LANES, end - first)"
LOOKUP = "my_page = table[b, (first + lane) // page] if lane < keys else 0"
START = "score = NOTHING"
PLACE = "key_page, slot = cuda.shfl_sync(ALL_LANES, my_page, j), (first + j) % page"
CLEAR = "partial = float32(0)"
SUM = "partial = warp_sum(partial)"
KEEP = "score = partial if j == lane else score"

WRONG = (
    Wrong(
        "table_not_used", "Keys follow each other in the pool: page 0, page 1, and so on.",
        ((LOOKUP, "my_page = (first + lane) // page if lane < keys else 0"),),
        (r"`\(first \+ lane\) // page`",),
        "my_page = (first + lane) // page if lane < keys else 0",
        cause="value",
    ),
    Wrong(
        "page_of_the_first_key", "A tile is on one page.",
        ((LOOKUP, "my_page = table[b, first // page]"),),
        (r"`table\[b, first // page\]`",),
        "my_page = table[b, first // page]",
        cause="value",
    ),
    Wrong(
        "next_page", "The number of pages so far, rounded up, is the page.",
        ((LOOKUP, "my_page = table[b, (first + lane + page - 1) // page] if lane < keys else 0"),),
        (r"the operator of `first \+ lane \+ page \- 1`",),
        "my_page = table[b, (first + lane + page - 1) // page] if lane < keys else 0",
        cause="operator",
    ),
    Wrong(
        "key_of_the_tile", "The table is read with the key's number in its tile.",
        ((LOOKUP, "my_page = table[b, lane // page] if lane < keys else 0"),),
        (r"the index of `table`, `lane`",),
        "my_page = table[b, lane // page] if lane < keys else 0",
        cause="index",
    ),
    Wrong(
        "table_of_the_first_request", "One table serves all requests.",
        ((LOOKUP, "my_page = table[0, (first + lane) // page] if lane < keys else 0"),),
        (r"the index of `table`, `0`",),
        "my_page = table[0, (first + lane) // page] if lane < keys else 0",
        cause="index",
    ),
    Wrong(
        "table_past_the_end", "All lanes look up a page; who has no key does not use it.",
        ((LOOKUP, "my_page = table[b, (first + lane) // page]"),),
        (r"`table\[b, \(first \+ lane\) // page\]`",),
        "my_page = table[b, (first + lane) // page]",
        cause="value",
    ),
    Wrong(
        "whole_tiles", "A tile has 32 keys; those past the end have weight 0 anyway.",
        ((KEYS, "keys = LANES"),),
        (r"`LANES`",),
        "keys = LANES",
        cause="value",
    ),
    Wrong(
        "page_not_handed_out", "Every lane reads from its own key's page.",
        ((PLACE, "key_page, slot = my_page, (first + j) % page"),),
        (r"`my_page`",),
        "key_page, slot = my_page, (first + j) % page",
        cause="value",
    ),
    Wrong(
        "page_of_lane_0", "Lane 0 hands out its page for all keys.",
        (("cuda.shfl_sync(ALL_LANES, my_page, j)", "cuda.shfl_sync(ALL_LANES, my_page, 0)"),),
        (r"an argument of `cuda\.shfl_sync`, `0`",),
        "key_page, slot = cuda.shfl_sync(ALL_LANES, my_page, 0), (first + j) % page",
        cause="argument",
    ),
    Wrong(
        "slot_of_the_tile", "The slot counts from the tile's first key.",
        (("(first + j) % page", "j % page"),),
        (r"an operand, `j`",),
        "key_page, slot = cuda.shfl_sync(ALL_LANES, my_page, j), j % page",
        cause="value",
    ),
    Wrong(
        "slot_of_the_lane", "The slot is that of the lane's own key.",
        (("(first + j) % page", "(first + lane) % page"),),
        (r"an operand, `lane`",),
        "key_page, slot = cuda.shfl_sync(ALL_LANES, my_page, j), (first + lane) % page",
        cause="value",
    ),
    Wrong(
        "slot_and_page_exchanged", "Quotient and remainder have changed places.",
        (("(first + lane) // page]", "(first + lane) % page]"),
         ("(first + j) % page", "(first + j) // page")),
        (r"the operator of `\(first \+ lane\) % page`",),
        "my_page = table[b, (first + lane) % page] if lane < keys else 0",
        cause="operator",
    ),
    Wrong(
        "slot_before_page", "The pool is taken for [slot, page, head, D].",
        (("(key_page, slot, h_kv,", "(slot, key_page, h_kv,"),),
        (r"`x, y = load2\(k_pool, \(slot, key_page, h_kv, 64 \* i \+ 2 \* lane\)\)`",),
        "x, y = load2(k_pool, (slot, key_page, h_kv, 64 * i + 2 * lane))",
        cause="argument",
    ),
    Wrong(
        "query_head", "K has a head for each query head.",
        (("slot, h_kv, 64", "slot, h, 64"),),
        (r"an argument of `load2`, `h`",),
        "x, y = load2(k_pool, (key_page, slot, h, 64 * i + 2 * lane))",
        cause="argument",
    ),
    Wrong(
        "sum_goes_on", "The sum is cleared once per tile, so a score has all keys before it.",
        ((START, START + "\n            " + CLEAR),
         ("                " + CLEAR + "\n                for", "                for")),
        (r"a statement that sets `partial`",),
        "key_page, slot = cuda.shfl_sync(ALL_LANES, my_page, j), (first + j) % page",
        cause="assignment left out",
    ),
    Wrong(
        "part_of_a_lane", "Each lane keeps its own part of the dot product.",
        (("                " + SUM + "\n", ""),),
        (r"a statement that sets `partial`",),
        "partial += q_rmem[i, 1] * y",
        cause="assignment left out",
    ),
    Wrong(
        "score_in_every_lane", "Every lane has the score, so every lane keeps it.",
        ((KEEP, "score = partial"),),
        (r"`partial`",),
        "score = partial",
        cause="value",
    ),
    Wrong(
        "score_of_zero", "A lane without a key has score 0.",
        ((START, "score = float32(0)"),),
        (r"`float32\(0\)`",),
        "score = float32(0)",
        cause="value",
    ),
    Wrong(
        "last_key_lost", "The newest key is the token's own, and need not be read.",
        ((KEYS, "keys = min(LANES, end - first - 1)"),),
        (r"`keys = min\(LANES, end \- first \- 1\)`",),
        "keys = min(LANES, end - first - 1)",
        cause="argument",
    ),
    Wrong(
        "lookup_per_key", "The page is looked up where it is used: right, and a load before each load.",
        ((PLACE, "key_page, slot = table[b, (first + j) // page], (first + j) % page"),),
        (r"counter is too high", r"load requests to `table`",),
        "key_page, slot = table[b, (first + j) // page], (first + j) % page",
        cause="value",
    ),
    Wrong(
        "sum_in_float64", "0.0 is a float64, and so is every sum with it.",
        ((CLEAR, "partial = 0.0"),),
        (r"counter is too high", r"float64 operations",),
        "partial = 0.0",
        cause="value",
    ),
    Wrong(
        "shuffle_under_condition", "A lane without a key need not shuffle.",
        (("                " + PLACE, "                if lane < keys:\n                    " + PLACE),),
        (r"`if lane < keys`",),
        "if lane < keys:",
        cause="several places",
    ),
)  # fmt: skip
