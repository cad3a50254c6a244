"""Wrong answers to lesson 03."""

from . import Wrong

STEPS = "range(5)"
LOOP = "                for step in range(5):  # the butterfly that `warp_sum` is\n"
SHUFFLE = "partial += cuda.shfl_xor_sync(ALL_LANES, partial, 16 >> step)"
BUTTERFLY = f"{LOOP}                    {SHUFFLE}\n"
KEEP = "                mine = partial if j == lane else mine\n"
STORE = "scores[b, h, row, first_key + lane] = mine"
ONE = "scores[b, h, row, first_key + j] = partial"
VISIBLE = "first_key + lane < visible"

WRONG = (
    Wrong(
        "four_steps",
        "The butterfly leaves out its last step: half of the lanes are missing from each sum.",
        ((STEPS, "range(4)"),),
        ("score of key 0: the sum over all 32 lanes",),
        "for step in range(4):  # the butterfly that `warp_sum` is",
        cause="loop bound",
    ),
    Wrong(
        "shuffle_down",
        "A tree that ends in lane 0, whose sum the other lanes never get.",
        (("shfl_xor_sync", "shfl_down_sync"),),
        (r"`scores\[b, h, row, visible - 1\]`", r"`scores\[b, h, row, 0\]` is right there"),
        "partial += cuda.shfl_down_sync(ALL_LANES, partial, 16 >> step)",
        cause="function",
    ),
    Wrong(
        "maximum_of_a_lane",
        "Each lane keeps the maximum of the keys that it stored.",
        (("row_max = warp_max(row_max)\n", "\n"),),
        ("`row_max`",),
        "row_max = max(row_max, mine)",
        cause="assignment left out",
    ),
    Wrong(
        "store_unguarded",
        "The lanes past the last key store too.",
        ((VISIBLE, "lane < LANES"),),
        ("out of bounds", "ragged"),
        "if lane < LANES:",
        cause="condition",
    ),
    Wrong(
        "shuffle_under_condition",
        "Only lanes with a visible key take part in the shuffle.",
        (
            (
                f"                    {SHUFFLE}",
                f"                    if {VISIBLE}:\n                        {SHUFFLE}",
            ),
        ),
        ("warp mask", "All 32 lanes of a warp have to take part"),
        "if first_key + lane < visible:",
        cause="several places",
    ),
    Wrong(
        "neighbouring_components",
        "Lane i starts at component i instead of 2 i.",
        (("64 * i + 2 * lane", "64 * i + lane"),),
        ("misaligned", "multiple of 2 elements"),
        "x, y = load2(k_head, (first_key + j, 64 * i + lane))",
        cause="argument",
    ),
    Wrong(
        "tail_of_keys",
        "Always 32 keys, also where fewer are left.",
        (("range(min(LANES, visible - first_key))", "range(LANES)"),),
        ("out of bounds", "of k, shape", "ragged"),
        "for j in range(LANES):",
        cause="loop bound",
    ),
    Wrong(
        "maximum_from_zero",
        "The maximum starts at 0: a row of negative scores loses all its weights.",
        (("row_max = float32(-math.inf)", "row_max = float32(0)"),),
        ("every score below -150", "`row_max` .* is 0, expected -"),
        "row_max = float32(0)",
        cause="argument",
    ),
    Wrong(
        "lane_0_stores",
        "Lane 0 stores every score, and the other lanes read it without waiting.",
        (
            (
                KEEP,
                f"{KEEP}                if lane == 0:\n                    {ONE}\n",
            ),
            (f"                {STORE}\n", ""),
        ),
        ("race", "no barrier between"),
        "if lane == 0:",
        cause="several places",
    ),
    Wrong(
        "store_a_key",
        "Lane j stores the score of key j at once: right, and a request per key.",
        (
            (
                KEEP,
                f"{KEEP}                if j == lane:\n                    {ONE}\n",
            ),
            (f"                {STORE}\n", ""),
        ),
        ("counter is too high", "store requests to `scores`", "16,384"),
        line="if j == lane:",
        cause="several places",
    ),
    Wrong(
        "reduced_in_the_inner_loop",
        "The butterfly runs once for each pair of components: with D = 128 the first is added 32 times.",
        (
            (
                BUTTERFLY,
                f"                    for step in {STEPS}:\n                        {SHUFFLE}\n",
            ),
        ),
        ("Wrong: D = 128", "score of key 0"),
        "for step in range(5):",
        cause="several places",
    ),
    Wrong(
        "lane_of_the_whole_row",
        "A lane keeps the score of key number `lane` of all keys, not of these 32.",
        (("if j == lane", "if first_key + j == lane"),),
        ("score of the last visible key", "-inf"),
        "mine = partial if first_key + j == lane else mine",
        cause="first tile only",
    ),
    Wrong(
        "maximum_each_key",
        "The maximum of the lanes is taken for every key, though all of them hold the same score by then.",
        ((KEEP, f"{KEEP}                row_max = max(row_max, warp_max(partial))\n"),),
        ("counter is too high", "shuffles", "181,504", "a reduction that could wait"),
        line="row_max = max(row_max, warp_max(partial))",
        cause="extra assignment",
    ),
    Wrong(
        "six_steps",
        "A butterfly of six steps counts every lane twice.",
        (),
        (
            "score of key 0",
            "It is 2 times what it should be",
        ),
        "for offset in (32, 16, 8, 4, 2, 1):",
        text="""\
row_max = float32(-math.inf)
for first_key in range(0, visible, LANES):
    mine = float32(-math.inf)
    for j in range(min(LANES, visible - first_key)):
        partial = float32(0)
        for i in range(PAIRS):
            x, y = load2(k_head, (first_key + j, 64 * i + 2 * lane))
            partial += q_rmem[i, 0] * x
            partial += q_rmem[i, 1] * y
        for offset in (32, 16, 8, 4, 2, 1):
            partial += cuda.shfl_xor_sync(ALL_LANES, partial, offset)
        mine = partial if j == lane else mine
    if first_key + lane < visible:
        scores[b, h, row, first_key + lane] = mine
        row_max = max(row_max, mine)
row_max = warp_max(row_max)
""",
        cause="several places",
    ),
    Wrong(
        "mask_of_16_lanes",
        "The mask names half of the lanes.",
        (),
        ("warp mask",),
        "partial += cuda.shfl_xor_sync(0xFFFF, partial, offset)",
        text="""\
row_max = float32(-math.inf)
for first_key in range(0, visible, LANES):
    mine = float32(-math.inf)
    for j in range(min(LANES, visible - first_key)):
        partial = float32(0)
        for i in range(PAIRS):
            x, y = load2(k_head, (first_key + j, 64 * i + 2 * lane))
            partial += q_rmem[i, 0] * x
            partial += q_rmem[i, 1] * y
        for offset in (16, 8, 4, 2, 1):
            partial += cuda.shfl_xor_sync(0xFFFF, partial, offset)
        mine = partial if j == lane else mine
    if first_key + lane < visible:
        scores[b, h, row, first_key + lane] = mine
        row_max = max(row_max, mine)
row_max = warp_max(row_max)
""",
        cause="argument",
    ),
    Wrong(
        "whole_tiles_only",
        "The keys past the last whole 32 are left out.",
        (),
        (
            "uninitialised read",
            "ragged",
            "score of the last visible key",
        ),
        "scores[b, h, row, first_key + lane] = mine",
        text="""\
row_max = float32(-math.inf)
for tile in range(visible // LANES):
    first_key = tile * LANES
    mine = float32(-math.inf)
    for j in range(LANES):
        partial = float32(0)
        for i in range(PAIRS):
            x, y = load2(k_head, (first_key + j, 64 * i + 2 * lane))
            partial += q_rmem[i, 0] * x
            partial += q_rmem[i, 1] * y
        for offset in (16, 8, 4, 2, 1):
            partial += cuda.shfl_xor_sync(ALL_LANES, partial, offset)
        mine = partial if j == lane else mine
    scores[b, h, row, first_key + lane] = mine
    row_max = max(row_max, mine)
row_max = warp_max(row_max)
""",
        cause="partial tile lost",
    ),
)
