"""Wrong versions of decoding: what learners really write, as edits of the real stages.

`checks.deletions` has those that leave out a barrier, a wait or a fence of a kernel in CUDA C.
"""

from functools import partial
from typing import Any

from flashcore_numba.checks.mutation import Mutant
from flashcore_numba.stages.edited import Edit

WRONG = ("value", "property")
OUTSIDE = ("memory", "value", "property")  # an index out of bounds is reported, a stale page is a wrong value


ATTEND, MERGE = "decode_chunks_attend", "decode_chunks_merge"


def _chunks(name: str, mistake: str, *edits: tuple[str, str], file: str = ATTEND, **options: Any) -> Mutant:
    made = tuple(Edit(old, new, file) for old, new in edits)
    return Mutant("decode/chunks", name, mistake, made, options.pop("expected", WRONG), **options)


CHUNKS = (
    _chunks(
        "page_of_the_first_key", "The page of a tile's first key is taken for all of its keys.",
        ("my_page = table[b, (first + lane) // page] if lane < keys else 0",
         "my_page = table[b, first // page]"),
        expected=OUTSIDE,
    ),
    _chunks(
        "next_page", "The page after the right one: `//` rounded up.",
        ("table[b, (first + lane) // page]", "table[b, (first + lane + page - 1) // page]"),
        expected=OUTSIDE,
    ),
    _chunks(
        "table_not_used", "Pages are read in the order of the pool: the block table is forgotten.",
        ("my_page = table[b, (first + lane) // page] if lane < keys else 0",
         "my_page = (first + lane) // page"),
        expected=OUTSIDE,
    ),
    _chunks(
        "table_of_the_first_request", "Every request reads the first row of the table.",
        ("table[b, (first + lane) // page]", "table[0, (first + lane) // page]"), expected=OUTSIDE,
    ),
    _chunks(
        "table_past_the_end", "All lanes look up a page, also for keys past the last: the table ends before.",
        (" if lane < keys else 0\n", "\n"), ("keys = min(LANES, end - first)", "keys = LANES"),
        expected=OUTSIDE,
    ),
    _chunks(
        "slot_of_the_tile", "The slot counts from the tile, not from the page.",
        ("v_pool, (key_page, (first + j) % page,", "v_pool, (key_page, j % page,"),
        expected=OUTSIDE,
    ),
    _chunks(
        "last_key_lost", "The last key, the newest token's own, is left out.",
        ("min(end, (chunk + 1) * size)", "min(end - 1, (chunk + 1) * size)"), expected=OUTSIDE,
    ),
    _chunks(
        "length_of_the_first_request", "All requests are as long as the first.",
        ("max(lengths[b], 0)", "max(lengths[0], 0)"), expected=OUTSIDE,
    ),
    _chunks(
        "whole_tiles", "The last tile is taken whole: what is past the last key is multiplied too.",
        ("keys = min(LANES, end - first)", "keys = min(LANES, (chunk + 1) * size - first)"),
        expected=OUTSIDE,
    ),
    _chunks(
        "mask_top_left", "The causal mask is aligned at the first key: token t sees the keys to t.",
        ("begin, end = band(token, tokens, length, left, right)",
         "begin, end = band(token, tokens, tokens, left, right)"),
        expected=OUTSIDE,
    ),
    _chunks(
        "wrong_group", "Query head h reads K/V head h % H_kv, not h // group.",
        ("h_kv = h // (q.shape[1] // k_pool.shape[2])", "h_kv = h % k_pool.shape[2]"),
    ),
    _chunks(
        "tokens_and_chunks_exchanged", "Tokens and chunks change places in the grid.",
        ("cuda.blockIdx.x % tokens, cuda.blockIdx.x // tokens * WARPS",
         "cuda.blockIdx.x // tokens, cuda.blockIdx.x % tokens * WARPS"),
        expected=OUTSIDE,
    ),
    _chunks(
        "sum_not_rescaled", "Where a tile brings a larger maximum O is rescaled, but the sum is not.",
        ("l * rescale + p", "l + p"),
    ),
    _chunks(
        "maximum_of_a_tile", "The maximum starts anew with every tile.",
        ("m_new = max(m, warp_max(score))", "m_new = warp_max(score)"),
        expected=WRONG,
    ),
    _chunks(
        "softcap_before_the_scale", "The softcap bounds scores in other units.",
        ("softcap * math.tanh(score / softcap)", "math.tanh(score / softcap)"),
    ),
    _chunks(
        "weights_of_the_merge", "The merge adds chunks as if they were equally heavy.",
        ("weight = math.exp(chunk_lse - m)",
         "weight = float32(1) if first <= lane < last else float32(0)"),
        file=MERGE,
    ),
    _chunks(
        "last_chunk_lost", "The number of chunks is rounded down.",
        ("(end + size - 1) // size if begin < end", "end // size if begin < end"),
        file=MERGE,
    ),
    _chunks(
        "chunks_before_the_window", "The merge also takes chunks before the window, which nobody wrote.",
        ("first, last = begin // size,", "first, last = 0,"), file=MERGE, expected=("memory", "value"),
    ),
    _chunks(
        "chunk_not_normalised", "A chunk leaves its O without dividing by its sum.",
        ("o_rmem[i, e] / l", "o_rmem[i, e]"),
    ),
    _chunks(
        "sink_in_every_chunk", "The sink joins the sum once per chunk.",
        ("l += math.exp(sinks[h] - m)", "l += float32(last - first) * math.exp(sinks[h] - m)"),
        file=MERGE,
    ),
    _chunks(
        "no_maximum", "The merge of no chunks takes exp(-inf - -inf).",
        ("        m = m if m > NOTHING else float32(0)  # without keys -inf - -inf would be NaN\n", ""),
        file=MERGE,
    ),
    _chunks(
        "lse_of_base_2", "The LSE is returned in units of log2.",
        ("lse[b, h, token] = m + math.log(l)", "lse[b, h, token] = (m + math.log(l)) * float32(1.4427)"),
        file=MERGE,
    ),
)  # fmt: skip

HEADER, KEYS, PARTS, E4M3, LOOP = (
    "decode.cuh",
    "decode_keys.cuh",
    "decode_parts.cuh",
    "e4m3.cuh",
    "in_turn",
)  # the variant in which a warp has many tiles and a block many requests
LATE = ("race", "copy", "memory", "value", "property")  # what is read before it is there, or after it was


def _in_cuda(
    stage: str, source: str, name: str, mistake: str, *edits: tuple[str, ...], **options: Any
) -> Mutant:
    """edits: of `source`, unless they name another file."""
    made = tuple(Edit(old, new, file[0] if file else source) for old, new, *file in edits)
    return Mutant(stage, name, mistake, made, options.pop("expected", WRONG), **options)


_split = partial(_in_cuda, "decode/split", "decode_split.cu")
_even = partial(_in_cuda, "decode/even", "decode_even.cu")
_cluster = partial(_in_cuda, "decode/cluster", "decode_clusters.cuh")

SPLIT = (
    _split(
        "nan_forgotten", "A maximum that knows no NaN makes a row of NaN one that sees no key.",
        ("float m = some ? lse_log2 : LOWEST", "float m = fmaxf(lse_log2, LOWEST)", KEYS),
    ),
    _split(
        "counter_not_reset", "The counter goes on counting, and the next launch finds it.",
        ("arrive_wrapping(arrived, count - 1)", "arrive_wrapping(arrived, 0xffffffff)", PARTS),
        expected=("counter",), on_gpu=False,
    ),
    _split(
        "first_block_merges", "The block that comes first merges: the other parts are not there yet.",
        ("count - 1) == count - 1;", "count - 1) == 0;", PARTS),
        expected=(*LATE, "unwritten"), on_gpu=False,
    ),
    _split(
        "nothing_released", "A plain atomic counts: what the block wrote before may be seen later.",
        ("ptx::arrive_wrapping(", "atomicInc(", PARTS), expected=("race", "memory"), on_gpu=False,
    ),
    _split(
        "place_of_the_first_rows", "The parts of all tiles of rows are in one place.",
        ("* rows.all + rows.first + row;", "* rows.all + row;"), expected=LATE, variant="many",
    ),
    _split(
        "parts_equally_heavy", "The merge adds parts as if they were equally heavy.",
        ("[&](int number) { return lse_smem[number][row]; }", "[&](int number) { return 0.0f; }", PARTS),
    ),
    _split(
        "number_of_the_batch", "A part is taken by its number among those of all requests.",
        ("number -= __shfl_sync(ALL_LANES, end - count, found), b += found;", "b += found;", PARTS),
        expected=(*LATE, "unwritten", "hang"),
    ),
    _split(
        "requests_left_over", "A block takes one part and no other: a small grid leaves requests undone.",
        ("work += gridDim.x", "work += 1 << 20"), expected=("unwritten", *WRONG), variant=LOOP,
    ),
    _split(
        "sink_in_every_part", "The sink joins the sum once per part.",
        ("if (column == 0) part_lse[part_row(part, row)] = lse_log2;",
         "float m = fmaxf(lse_log2, LOWEST), l = lse_log2 == -INFINITY ? 0.0f : 1.0f;\n"
         "join_sink(m, l, rows.params, rows.head(row));\n"
         "if (column == 0) part_lse[part_row(part, row)] = l == 0 ? -INFINITY : m + __log2f(l);",
         PARTS),
    ),
    _split(
        "window_begins_late", "The first key of a window is rounded up to a tile.",
        ("tiles = seen.tiles(16);\n        const Parts",
         "tiles{(seen.begin + 15) / 16, (seen.end + 15) / 16};\n        const Parts"),
    ),
    _split(
        "last_part_lost", "The last part of a request is what remains of whole ones.",
        ("count = max(1, ceil_div(all, tiles));", "count = max(1, all / tiles);"),
    ),
    _split(
        "last_key_lost", "The newest token's own key is left out.",
        ("sees(mask, inside - 1).end};", "max(0, sees(mask, inside - 1).end - 1)};", KEYS),
        expected=OUTSIDE,
    ),
    _split(
        "keys_of_the_first_token", "The keys end where the first token's do.",
        ("sees(mask, inside - 1).end};", "sees(mask, 0).end};", KEYS),
    ),
    _split(
        "window_not_masked", "Of a window's first tile all keys are taken for seen.",
        ("key < last_sees.begin || ", "", HEADER),
    ),
    _split(
        "masked_for_the_last_token", "Tiles are masked that end after the last token's keys.",
        ("key + 16 > first_sees.end", "key + 16 > last_sees.end", HEADER),
    ),
    _split(
        "next_page", "The page after the right one: `/` rounded up.",
        ("key / table.page]", "(key + table.page - 1) / table.page]", KEYS), expected=OUTSIDE,
    ),
    _split(
        "table_of_the_first_request", "Every request reads the first row of the table.",
        ("(long long)b * table.row + ", "", KEYS), expected=OUTSIDE,
    ),
    _split(
        "stale_places", "The places of the first tiles serve all tiles.",
        ("if (turn % HELD_TURNS == 0) keys.here", "if (turn == 0) keys.here", HEADER),
        expected=(*OUTSIDE, "race"), variant=LOOP,
    ),
    _split(
        "tail_read", "What is after the last key of a page is read: its weight is 0, but it may be NaN.",
        ("const bool counts = seen.begin <= key && key < seen.end;", "const bool counts = true;", KEYS),
        expected=OUTSIDE,
    ),
    _split(
        "page_of_a_tile", "A tile is always taken to be on one page.",
        ("p.page % KEYS == 0 or p.width == 1", "p.page > 0", "decode_parts"), expected=OUTSIDE,
    ),
    _split(
        "wrong_group", "Query head h reads K/V head h % H_kv, not h // group.",
        ("return h_kv * params.group + min(first + row, all - 1) - token(row) * params.group;",
         "return h_kv + (min(first + row, all - 1) - token(row) * params.group) * (params.H / params.group);",
         KEYS),
    ),
    _split(
        "tokens_before_heads", "Rows of a head are taken token by token within each head.",
        ("return int(min(first + row, all - 1) * (unsigned long long)inverse_group >> 31);",
         "return min(first + row, all - 1) % params.S_q;", KEYS), expected=OUTSIDE,
    ),
    _split(
        "group_rounded_down", "The inverse of the group is rounded down: 3 / 3 is 0.",
        ("-(-(1 << 31) // p.group)", "(1 << 31) // p.group", "decode_parts"), expected=OUTSIDE,
    ),
    _split(
        "slot_still_read", "A tile goes into the slot that is multiplied.",
        ("rows.h_kv, turn + STAGES - 1);", "rows.h_kv, turn + STAGES);", HEADER),
        expected=(*LATE, "unwritten"), variant=LOOP,
    ),
    _split(
        "part_not_divided", "A part leaves its O without dividing by its sum.",
        ("o[j] *= inverse_sum(l);", "o[j] *= 1.0f;", KEYS),
    ),
    _split(
        "lse_of_base_2", "The LSE is returned in units of log2.",
        ("= log_sum_exp(m, l);", "= m + __log2f(l);", KEYS),
    ),
    _split(
        "scale_of_k_forgotten", "The stored K is taken for the real one.",
        ("(SOFTCAP ? 1.0f : rows.k_scale)", "1.0f", HEADER),
    ),
    _split(
        "scale_after_the_softcap", "The softcap bounds scores of the stored K.",
        ("adjustment.scale_by_cap *= rows.k_scale;", "", HEADER),
    ),
    _split(
        "scale_of_v_forgotten", "The stored V is taken for the real one.",
        ("inverse_sum(l) * v_scale;", "inverse_sum(l);", KEYS),
    ),
    _split(
        "scale_of_k_on_v", "O is multiplied by the scale of K.",
        ("inverse_sum(l) * v_scale;", "inverse_sum(l) * k_scale;", KEYS),
    ),
    _split(
        "scale_of_the_first_head", "All heads take the scale of the first.",
        ("cache.scales.k(h_kv)", "cache.scales.k(0)", KEYS),
    ),
    _split(
        "scale_of_the_query_head", "The scale is looked up by the query head.",
        ("cache.scales.v(h_kv)", "cache.scales.v(h_kv * params.group)", KEYS), expected=OUTSIDE,
    ),
    _split(
        "sign_lost", "The first bit of a byte is taken for none.",
        ("widen_e4m3((uint16_t)bytes)", "widen_e4m3((uint16_t)(bytes & 0x7f7f))", E4M3),
    ),
    _split(
        "subnormal_lost", "Bytes without an exponent are taken for 0.",
        ("widen_e4m3((uint16_t)(bytes >> 16))",
         "widen_e4m3((uint16_t)(bytes >> 16 & ((bytes >> 16 & 0x78 ? 0xff : 0) "
         "| (bytes >> 24 & 0x78 ? 0xff00 : 0))))",
         E4M3),
    ),
    _split(
        "columns_in_order", "Q is read as for elements, whose lanes have other columns.",
        ("E4M3 ? load_fours(q_rmem, q_smem, lane) : load_queries(q_rmem, q_smem, lane);",
         "load_queries(q_rmem, q_smem, lane);", HEADER),
    ),
    _split(
        "columns_of_neighbours", "Of two columns of V the keys are mixed: bytes are taken as they come.",
        ("__byte_perm(bytes_rmem[2 * i], 0, 0x3120)", "bytes_rmem[2 * i]", E4M3),
    ),
    _split(
        "odd_before_even", "The odd columns of O are stored before the even ones.",
        ("make_float4(even[0], odd[0], even[1], odd[1])", "make_float4(odd[0], even[0], odd[1], even[1])",
         E4M3),
    ),
    _split(
        "tail_of_bytes", "The bytes after the last key of a page are read: those of NaN spoil O.",
        ("const bool counts = seen.begin <= key && key < seen.end;",
         "const bool counts = E4M3 || (seen.begin <= key && key < seen.end);", KEYS), expected=OUTSIDE,
    ),
)  # fmt: skip


LOST = ("unwritten", *LATE)

EVEN = (
    _even(
        "stretch_rounded_down", "All blocks together have fewer steps than there are.",
        ("max(ceil_div(together, blocks), ceil_div(longest, MAX_PARTS - 1))",
         "max(together / blocks, ceil_div(longest, MAX_PARTS - 1))"),
        expected=LOST, variant=LOOP,
    ),
    _even(
        "starts_not_counted", "The row ends as if no request had steps before its own.",
        ("together = sum + requests * START;", "together = sum;"), expected=LOST, variant=LOOP,
    ),
    _even(
        "more_parts_than_places", "A request that has many blocks to itself makes a part for each.",
        (", ceil_div(longest, MAX_PARTS));", ", 1);"), expected=(*OUTSIDE, *LOST, "hang"),
    ),
    _even(
        "apart_by_one", "Requests that are apart begin a step after the first of a block.",
        ("lead = 0, room = each * share", "lead = 1, room = each * share"), expected=LOST,
    ),
    _even(
        "sum_of_a_lane", "Each lane divides by the requests that it has counted itself.",
        ("greatest, lanes));\n        sum += __shfl_xor_sync(ALL_LANES, sum, lanes);", "greatest, lanes));"),
        expected=(*LOST, "warp", "hang", "barrier"), variant=LOOP, on_gpu=False,
    ),
    _even(
        "from_the_beginning", "A block that goes on with a request begins it anew.",
        ("from = max(0, at - begin)", "from = 0"), variant=LOOP,
    ),
    _even(
        "to_the_end", "A block that ends inside a request reads all the rest of it.",
        ("to = min(steps, end - begin);", "to = steps;"), expected=LATE, variant=LOOP,
    ),
    _even(
        "part_without_keys", "A block that has only steps before a request counts as one of its parts.",
        ("first_block = begin / row.share", "first_block = (begin - row.lead) / row.share"),
        expected=(*LOST, "counter"), variant=LOOP, on_gpu=False,
    ),
    _even(
        "one_place_for_two", "The end of one request and the beginning of the next are left in one place.",
        ("2 * (first_block + number) + (number == 0)", "first_block + number"),
        expected=LATE, variant=LOOP,
    ),
    _even(
        "next_too_late", "The next request is looked for as many steps on as this one has.",
        ("next = at - first + room_of(steps);", "next = at + room_of(steps);"), expected=LOST, variant=LOOP,
    ),
    _even(
        "counter_of_the_head", "All requests count at one counter.",
        ("arrived + ((long long)b * gridDim.y + h_kv)", "arrived + h_kv"), expected=(*LOST, "counter"),
        variant=LOOP, on_gpu=False,
    ),
    _even(
        "window_begins_late", "The first key of a window is rounded up to a tile.",
        ("seen = rows.see(mask), tiles = seen.tiles(16);",
         "seen = rows.see(mask), tiles{(seen.begin + 15) / 16, (seen.end + 15) / 16};"),
    ),
)  # fmt: skip


CLUSTER = (
    _cluster(
        "scales_before_the_wait", "The scales of a cache are read while the kernel before may write them.",
        ("const BlockRows rows(params, cache, inverse_group, blockIdx.y, tile);  // reads scales, which",
         "//"),
        ("const int tile = blockIdx.x / CLUSTER, inside", "const int tile = blockIdx.x / CLUSTER;\n"
         "    const BlockRows rows(params, cache, inverse_group, blockIdx.y, tile);\n    const int inside"),
        expected=("copy",), variant="overlapped", on_gpu=False,
    ),
    _cluster(
        "one_message_less", "The owner waits for the bytes of all parts but one.",
        ("CLUSTER * (float4s + inside) * 16", "(CLUSTER - 1) * (float4s + inside) * 16"),
        expected=(*LATE, "hang", "simulator", "barrier"), on_gpu=False,
    ),
    _cluster(
        "sums_for_the_others", "The last block is not told of the parts' sums, and waits.",
        ("owner < CLUSTER; owner++", "owner < CLUSTER - 1; owner++"), expected=("hang",), on_gpu=False,
    ),
    _cluster(
        "in_one_place", "Every block sends its part to the place of the first.",
        ("&o_smem[rank][i / CLUSTER]", "&o_smem[0][i / CLUSTER]"), expected=(*LATE, "unwritten"),
    ),
    _cluster(
        "owned_in_a_row", "Blocks send every CLUSTER-th float4, and store as if each had a row of them.",
        ("i = own * CLUSTER + rank", "i = rank * float4s + own"), expected=WRONG,
    ),
    _cluster(
        "parts_equally_heavy", "The merge adds parts as if they were equally heavy.",
        ("return lse_smem[part][row].x;", "return 0.0f;"),
    ),
    _cluster(
        "parts_overlap", "A part has all keys from its first one on.",
        ("ceil_div(min(tiles.end - first_tile + later, part_tiles - warp + later), WARPS)",
         "ceil_div(tiles.end - first_tile + later, WARPS)"),
    ),
    _cluster(
        "parts_of_the_grid", "The number of a part is the block's in the grid, not in the cluster.",
        ("tiles.begin + rank * part_tiles", "tiles.begin + int(blockIdx.x) * part_tiles"),
    ),
)  # fmt: skip
WGMMA, WIDE = "decode_wgmma.cuh", "wide"  # the variant that has 64 rows in a block, however few there are
OPERANDS = (*LATE, "warp", "simulator", "barrier", "hang", "unwritten")  # of products of four warps

WARPGROUPS = (
    _cluster(
        "turns_of_a_warp", "Each warp of a warpgroup has as many turns as its own keys take.",
        ("tiles.end - first_tile + later, part_tiles - warp + later)",
         "tiles.end - first_tile, part_tiles - warp)"),
        expected=OPERANDS, variant=WIDE, on_gpu=False,
    ),
    _cluster(
        "one_place_for_k_and_v", "K and V of a tile go to the same place.",
        ("(2 * turn + IS_V) % STAGES", "2 * turn % STAGES", WGMMA), expected=OPERANDS, variant=WIDE,
    ),
    _cluster(
        "rows_of_the_first_warp", "All warps copy their keys to the tile's first 16 rows.",
        ("place<IS_V>(keys, turn) + threadIdx.x / 32 % SHARERS * 16 * 64", "place<IS_V>(keys, turn)", WGMMA),
        expected=OPERANDS, variant=WIDE,
    ),
    _cluster(
        "swizzle_forgotten", "The chunks of a row are in order, as wgmma does not read them.",
        ("(chunk ^ row) % 8 * 8", "chunk % 8 * 8", WGMMA), variant=WIDE,
    ),
    _cluster(
        "key_of_the_warp", "The mask counts keys from the warp's own 16, not from the tile's first.",
        ("keys.key_of(turn) - own_warp % SHARERS * 16;", "keys.key_of(turn);", WGMMA), variant=WIDE,
    ),
    _cluster(
        "mask_of_the_first_warp", "All warps mask as if they had the first 16 rows.",
        ("const int row = warp_row + lane / 4;", "const int row = lane / 4;", WGMMA),
    ),
    _cluster(
        "masked_for_the_last_row", "Tiles are masked that end after the keys of the warp's last row.",
        ("key + BLOCK_N > first_sees.end", "key + BLOCK_N > last_sees.end", WGMMA), variant=WIDE,
    ),
    _cluster(
        "window_not_masked", "Of a window's first tile all keys are taken for seen.",
        ("key < last_sees.begin || ", "", WGMMA), variant=WIDE,
    ),
    _cluster(
        "sum_not_rescaled", "Where a tile brings a larger maximum O and the sum stay as they are.",
        ("if (turn > 0) rescale_o_and_l(o_rmem, l, rescale);", "", WGMMA), variant=WIDE,
    ),
    _cluster(
        "filled_a_turn_late", "The ring is filled a turn later than it is read.",
        ("load_own<STAGES % 2>(keys, rows, k, v, turn + STAGES / 2);",
         "load_own<STAGES % 2>(keys, rows, k, v, turn + STAGES / 2 - 1);", WGMMA),
        expected=OPERANDS,
    ),
    _cluster(
        "last_warpgroup_lost", "The merge takes what the first warpgroup has for the block's.",
        ("o, SHARES, [&](int s)", "o, SHARERS > 1 ? 1 : SHARES, [&](int s)"), variant=WIDE,
    ),
    _cluster(
        "sums_to_some_owners", "One thread of each owner's share of a row sends, and one owner has none.",
        ("if (SHARERS > 1 && i % QUADS < CLUSTER)", "if (SHARERS > 1 && i % QUADS < CLUSTER - 1)"),
        expected=("hang",), variant=WIDE, on_gpu=False,
    ),
)  # fmt: skip
MUTANTS = (*CHUNKS, *SPLIT, *EVEN, *CLUSTER, *WARPGROUPS)
