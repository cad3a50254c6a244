"""Wrong answers to lesson 04: tiles in shared memory."""

from . import Wrong

FIRST = "cuda.syncthreads()  # Q and the K tile are whole before a lane reads a row that others wrote"
SECOND = "cuda.syncthreads()  # every warp has read the tile before the next one overwrites it"
DOT = "            score = dot(q_smem, warp, kv_smem, lane) * scale\n"
MASK = "            if first_key + lane < visible:\n"
MAXIMUM = "                row_max = max(row_max, score)\n"

WRONG = (
    Wrong(
        "no_first_barrier", "The tile is read while other warps still write it.",
        ((FIRST, "pass"),),
        ("race", "q_smem", "no barrier between", "who may still write"),
        "score = dot(q_smem, warp, kv_smem, lane) * scale",
        cause="barrier left out",
    ),
    Wrong(
        "no_second_barrier", "The next tile overwrites the one that slower warps still read.",
        ((SECOND, "pass"),),
        ("race", "kv_smem", "no barrier between", "who may still read"),
        "score = dot(q_smem, warp, kv_smem, lane) * scale",
        cause="barrier left out",
    ),
    Wrong(
        "second_barrier_after_the_loop", "One barrier at the end, for all tiles together.",
        ((f"    {SECOND}", SECOND),),
        ("race", "kv_smem", "no barrier between"),
        "score = dot(q_smem, warp, kv_smem, lane) * scale",
        cause="barrier left out",
    ),
    Wrong(
        "barrier_under_the_mask", "Only lanes that see their key come to the second barrier.",
        ((SECOND, f"    {SECOND}"),),
        ("divergent barrier", "line 9 of your answer", "the branch at line 6"),
        "cuda.syncthreads()  # every warp has read the tile before the next one overwrites it",
        cause="several places",
    ),
    Wrong(
        "loop_over_visible_keys", "As in stage 03 a warp stops at its last visible key, and misses barriers.",
        (("range(0, seq_k, KEYS)", "range(0, visible, KEYS)"),),
        ("divergent barrier", "the branch at line 2 of your answer"),
        "for first_key in range(0, visible, KEYS):",
        cause="loop bound",
    ),
    Wrong(
        "syncwarp_for_syncthreads", "A barrier of the warp, for a tile that 16 warps fill.",
        ((FIRST, FIRST.replace("syncthreads", "syncwarp")),),
        ("race", "no barrier between"),
        "cuda.syncwarp()  # Q and the K tile are whole before a lane reads a row that others wrote",
        cause="function",
    ),
    Wrong(
        "always_the_first_tile", "Each turn loads the tile from key 0.",
        (("load_tile(k[b, h], first_key,", "load_tile(k[b, h], 0,"),),
        ("`row_max`", "largest visible score", "expected"),
        "load_tile(k[b, h], 0, kv_smem, thread, THREADS)",
        cause="argument",
    ),
    Wrong(
        "stored_without_first_key", "Each tile's scores go to the first 32 places.",
        (("scores[b, h, row, first_key + lane] = score", "scores[b, h, row, lane] = score"),),
        ("uninitialised read", "scores element 32 was never written"),
        "scores[b, h, row, lane] = score",
        cause="index",
    ),
    Wrong(
        "scale_forgotten", "The scores are not scaled.",
        ((" * scale", ""),),
        (r"`scores\[b, h, row, lane\]`", "8 times what it should be"),
        "score = dot(q_smem, warp, kv_smem, lane)",
        cause="scale missing",
    ),
    Wrong(
        "lane_and_warp_swapped", "The lane takes a query row and the warp a key.",
        (("dot(q_smem, warp, kv_smem, lane)", "dot(q_smem, lane, kv_smem, warp)"),),
        ("out of bounds", "q_smem", r"shape \(16, 68\)"),
        "score = dot(q_smem, lane, kv_smem, warp) * scale",
        cause="argument",
    ),
    Wrong(
        "maximum_of_one_lane", "Each lane keeps the maximum of its own keys.",
        (("        row_max = warp_max(row_max)\n", ""),),
        ("`row_max`",),
        "cuda.syncthreads()  # every warp has read the tile before the next one overwrites it",
        cause="assignment left out",
    ),
    Wrong(
        "maximum_before_the_mask", "The zeros past the last key count for the maximum.",
        ((MASK, "            row_max = max(row_max, score)\n" + MASK), (MAXIMUM, "")),
        ("every score below -150", "`row_max`"),
        "row_max = max(row_max, score)",
        cause="several places",
    ),
    Wrong(
        "mask_of_the_length_only", "The mask asks whether the key exists, not whether the row sees it.",
        (("first_key + lane < visible", "first_key + lane < seq_k"),),
        ("out of bounds", "of scores", r"shape \(2, 2, 33, 70\)"),
        "if first_key + lane < seq_k:",
        cause="condition",
    ),
    Wrong(
        "maximum_from_zero", "The maximum starts at 0.",
        (("float32(-math.inf)", "float32(0)"),),
        ("every score below -150", "`row_max`"),
        "row_max = float32(0)",
        cause="argument",
    ),
    Wrong(
        "k_from_global_memory", "The tile is loaded, and the dot product reads K from global memory.",
        ((DOT, (
            "            score = float32(0)\n"
            "            for c in range(D):\n"
            "                score += q_smem[warp, c] * k[b, h, min(first_key + lane, seq_k - 1), c]\n"
            "            score *= scale\n"
        )),),
        ("sectors loaded from global memory", "the bar is", "still comes from global memory"),
        line="score = float32(0)",
        cause="several places",
    ),
    Wrong(
        "four_bytes_per_load", "A dot product of its own loads 4 bytes, which the padding does not suit.",
        ((DOT, (
            "            score = float32(0)\n"
            "            for c in range(D):\n"
            "                score += q_smem[warp, c] * kv_smem[lane, c]\n"
            "            score *= scale\n"
        )),),
        ("bank conflicts", "98,304", "how many bytes a lane reads"),
        line="score = float32(0)",
        cause="several places",
    ),
    Wrong(
        "a_third_barrier", "One barrier more, to be on the safe side.",
        ((MASK, "            cuda.syncthreads()  # the scores are whole\n" + MASK),),
        ("barriers", "2,560", "one that closes neither"),
        line="cuda.syncthreads()  # the scores are whole",
        cause="extra barrier",
    ),
    Wrong(
        "return_past_the_last_row",
        "Warps past the last row return, and the others wait for them.",
        (),
        ("barrier", "Threads leave at line 2 of your answer, `return`",),
        "if row >= seq_q:",
        text="""\
if row >= seq_q:
    return
row_max = float32(-math.inf)
for first_key in range(0, seq_k, KEYS):
    load_tile(k[b, h], first_key, kv_smem, thread, THREADS)
    cuda.syncthreads()
    score = dot(q_smem, warp, kv_smem, lane) * scale
    if first_key + lane < visible:
        scores[b, h, row, first_key + lane] = score
        row_max = max(row_max, score)
    cuda.syncthreads()
row_max = warp_max(row_max)
""",
        cause="extra condition",
    ),
    Wrong(
        "lane_for_thread",
        "Every warp loads what the first one loads.",
        (),
        ("race", "Reached from line 3 of your answer",),
        "load_tile(k[b, h], first_key, kv_smem, lane, THREADS)",
        text="""\
row_max = float32(-math.inf)
for first_key in range(0, seq_k, KEYS):
    load_tile(k[b, h], first_key, kv_smem, lane, THREADS)
    cuda.syncthreads()
    score = dot(q_smem, warp, kv_smem, lane) * scale
    if first_key + lane < visible:
        scores[b, h, row, first_key + lane] = score
        row_max = max(row_max, score)
    cuda.syncthreads()
row_max = warp_max(row_max)
""",
        cause="argument",
    ),
    Wrong(
        "tile_for_key",
        "The number of the tile instead of its first key.",
        (),
        ("`row_max`", "is right there",),
        "for tile in range(-(-seq_k // KEYS)):",
        text="""\
row_max = float32(-math.inf)
for tile in range(-(-seq_k // KEYS)):
    load_tile(k[b, h], tile, kv_smem, thread, THREADS)
    cuda.syncthreads()
    score = dot(q_smem, warp, kv_smem, lane) * scale
    if tile * KEYS + lane < visible:
        scores[b, h, row, tile * KEYS + lane] = score
        row_max = max(row_max, score)
    cuda.syncthreads()
row_max = warp_max(row_max)
""",
        cause="several places",
    ),
)  # fmt: skip
