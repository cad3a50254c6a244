"""Wrong versions of decoding: what learners really write, as edits of the real stages.

`checks.deletions` has those that leave out a barrier, a wait or a fence of a kernel in CUDA C.
"""

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
        ("slot = cuda.shfl_sync(ALL_LANES, my_page, j), (first + j) % page\n"
         "                p_j", "slot = cuda.shfl_sync(ALL_LANES, my_page, j), j % page\n"
         "                p_j"),
        expected=OUTSIDE,
    ),
    _chunks(
        "last_key_lost", "The last key, the newest token's own, is left out.",
        ("min(end, (chunk + 1) * size)", "min(end - 1, (chunk + 1) * size)"), expected=OUTSIDE,
    ),
    _chunks(
        "length_of_the_first_request", "All requests are as long as the first.",
        ("length = lengths[b]\n", "length = lengths[0]\n"), expected=OUTSIDE,
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
MUTANTS = CHUNKS
