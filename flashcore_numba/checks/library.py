"""The mutants: what learners really write, as edits of the real stages."""

from typing import Any

from flashcore_numba.checks.cuda_library import CUDA_MUTANTS
from flashcore_numba.checks.mutation import Mutant
from flashcore_numba.stages.edited import Edit

VALUE, MEMORY, RACE, BARRIER, UNWRITTEN = ("value",), ("memory",), ("race",), ("barrier",), ("unwritten",)
NO_KEY = ("value", "property")


def _mutant(
    stage: int,
    name: str,
    mistake: str,
    *edits: tuple[str, str] | tuple[str, str, str],
    expected: tuple[str, ...] = VALUE,
    **options: Any,
) -> Mutant:
    """Edits are (old, new) or (old, new, file) tuples."""
    return Mutant(stage, name, mistake, tuple(Edit(*edit) for edit in edits), expected, **options)


def _without(barrier: str) -> tuple[str, str]:
    """The edit that comments a barrier out; `barrier` includes enough of its comment to be unique."""
    return barrier, f"# {barrier}"


STAGE_01 = (
    _mutant(
        1, "max_from_zero", "The maximum starts at 0: where all scores are very negative, 0 / 0.",
        ("row_max = float32(-math.inf)", "row_max = float32(0)"),
    ),
    _mutant(
        1, "max_from_tiny", "The maximum starts at 1e-30, which is larger than any negative score.",
        ("row_max = float32(-math.inf)", "row_max = float32(1e-30)"),
    ),
    _mutant(
        1, "mask_hides_diagonal", "`<` for `<=` in the causal mask: a row does not see its own key.",
        ("interval(row, q.shape[2],", "interval(row - 1, q.shape[2],"),
    ),
    _mutant(
        1, "mask_top_left", "The causal mask is aligned at the first key, not at the last.",
        ("interval(row, q.shape[2],", "interval(row, k.shape[2],"),
    ),
    _mutant(
        1, "scale_forgotten", "The scores are not scaled.",
        ("score *= scale", "score *= float32(1)"),
    ),
    _mutant(
        1, "scale_after_max", "The maximum is taken before scaling, the exponential after: exp underflows.",
        ("score *= scale", "score *= float32(1)"),
        ("math.exp(scores[b, h, row, j] - row_max)", "math.exp(scores[b, h, row, j] * scale - row_max)"),
    ),
    _mutant(
        1, "not_divided", "The output is not divided by the sum of the weights.",
        ("o_rmem[c] * inv_sum", "o_rmem[c]"),
    ),
    _mutant(
        1, "empty_row", "A row that sees no key divides 0 by 0.",
        (" if visible > 0 else float32(0)", ""), expected=NO_KEY,
    ),
    _mutant(
        1, "batch_ignored", "Every batch reads the keys of batch 0.",
        ("k[b, h, j, c]", "k[0, h, j, c]"),
    ),
    _mutant(
        1, "indices_swapped", "Row and column of V are exchanged.",
        ("v[b, h, j, c]", "v[b, h, c, j]"), expected=MEMORY, on_gpu=False,
    ),
    _mutant(
        1, "last_rows_skipped", "The grid is rounded down, so the last, partial block of rows never runs.",
        ("grid = (-(-p.seq_q // ROWS),", "grid = (max(1, p.seq_q // ROWS),"), expected=UNWRITTEN,
    ),
    _mutant(
        1, "row_guard_off_by_one", "`>` for `>=`: the thread past the last row runs too.",
        ("if row >= q.shape[2]:", "if row > q.shape[2]:"), expected=MEMORY, on_gpu=False,
    ),
    _mutant(
        1, "float16_sum", "O is accumulated in float16.",
        ("from numba import cuda, float32\n",
         "from numba import cuda, float32\nfrom numba.cuda.types import float16\n"),
        ("o_rmem = cuda.local.array(D, float32)", "o_rmem = cuda.local.array(D, float16)"),
    ),
)  # fmt: skip

STAGE_02 = (
    _mutant(
        2, "last_chunk_forgotten", "The dot product stops one chunk of eight components early.",
        ("for c in range(0, q_rmem.shape[0], 8):", "for c in range(0, q_rmem.shape[0] - 8, 8):"),
    ),
    _mutant(
        2, "seven_of_eight", "A 128-bit load brings eight values; only seven are used.",
        ("for e in range(8):\n            total", "for e in range(7):\n            total"),
    ),
    _mutant(
        2, "scores_not_transposed", "The scores are stored [rows, keys] in memory made for [keys, rows].",
        ("scores[b, h, j, row] = score", "scores[b, h, row, j] = score"), expected=MEMORY, on_gpu=False,
    ),
    _mutant(
        2, "misaligned_load", "A 128-bit load of V starts at a component that is no multiple of eight.",
        ("load8(v_head, (j, c))", "load8(v_head, (j, max(0, c - 4)))"), expected=MEMORY, on_gpu=False,
    ),
    _mutant(
        2, "scale_forgotten", "The query row is loaded without the scale.",
        ("load_row(q[b, h, row], q_rmem, scale)", "load_row(q[b, h, row], q_rmem, float32(1))"),
    ),
    _mutant(
        2, "head_ignored", "Every head reads the values of head 0.",
        ("k_head, v_head = k[b, h], v[b, h]", "k_head, v_head = k[b, h], v[b, 0]"),
    ),
    _mutant(
        2, "empty_row", "A row that sees no key divides 0 by 0.",
        (" if visible > 0 else float32(0)", ""), expected=NO_KEY,
    ),
    _mutant(
        2, "sum_without_max", "exp(score) without the maximum overflows.",
        ("math.exp(scores[b, h, j, row] - row_max)", "math.exp(scores[b, h, j, row])"),
    ),
    _mutant(
        2, "accumulator_not_zeroed", "The output registers are not set to zero.",
        ("            o_rmem[c] = 0", "            continue"), expected=(*MEMORY, *VALUE), on_gpu=False,
    ),
)  # fmt: skip

STAGE_03 = (
    _mutant(
        3, "butterfly_one_step_short", "The butterfly stops at offset 2: every lane holds half of the sum.",
        ("value += cuda.shfl_xor_sync(ALL_LANES, value, offset)\n        offset //= 2",
         "value += cuda.shfl_xor_sync(ALL_LANES, value, offset)\n        offset = offset // 4 * 2",
         "common"),
    ),
    _mutant(
        3, "butterfly_starts_at_eight", "The butterfly starts at offset 8: the two halves never meet.",
        ('butterfly of five shuffles."""\n    offset = 16', 'butterfly of five shuffles."""\n    offset = 8',
         "common"),
    ),
    _mutant(
        3, "half_of_the_lanes_named", "The shuffle's mask names 16 of the 32 lanes.",
        ("ALL_LANES = 0xFFFFFFFF", "ALL_LANES = 0xFFFF", "common"), expected=("warp",), on_gpu=False,
    ),
    _mutant(
        3, "max_of_first_tile", "The maximum covers only the first 32 keys; later scores overflow.",
        ("row_max = max(row_max, mine)", "row_max = max(row_max, mine) if first_key == 0 else row_max"),
    ),
    _mutant(
        3, "max_of_own_lane", "Each lane keeps the maximum of its own keys.",
        ("row_max = warp_max(row_max)", "row_max = row_max"),
    ),
    _mutant(
        3, "sum_of_own_lane", "Each lane divides by the sum of its own keys.",
        ("row_sum = warp_sum(row_sum)", "row_sum = row_sum"),
    ),
    _mutant(
        3, "pair_mixed", "Both components of a pair of Q meet the first component of K.",
        ("partial += q_rmem[i, 1] * y", "partial += q_rmem[i, 1] * x"),
    ),
    _mutant(
        3, "lanes_overlap", "Lane i loads the pair that starts at component i, not at 2 i.",
        ("load2(v_head, (first_key + j, 64 * i + 2 * lane))",
         "load2(v_head, (first_key + j, 64 * i + lane))"),
        expected=MEMORY, on_gpu=False,
    ),
    _mutant(
        3, "weight_of_the_wrong_lane", "The weight is taken from lane j + 1.",
        ("cuda.shfl_sync(ALL_LANES, p, j)", "cuda.shfl_sync(ALL_LANES, p, j + 1)"),
    ),
    _mutant(
        3, "tail_unmasked", "Lanes past the last key add a weight of 1 to the sum, not 0.",
        ("            p = float32(0)\n", "            p = float32(1)\n"),
    ),
    _mutant(
        3, "shuffle_in_branch", "The shuffle names all lanes, but only those with a key come to it.",
        ("            row_sum += p\n",
         "            if first_key + lane < visible:\n"
         "                row_sum += cuda.shfl_xor_sync(ALL_LANES, p, 0)\n"),
        expected=("warp",), on_gpu=False,
    ),
    _mutant(
        3, "last_rows_skipped", "The grid is rounded down, so the last, partial block of rows never runs.",
        ("grid = (-(-p.seq_q // WARPS),", "grid = (max(1, p.seq_q // WARPS),"), expected=UNWRITTEN,
    ),
)  # fmt: skip

STAGE_04 = (
    _mutant(
        4, "no_barrier_before_k", "The K tile is read while other warps still write it.",
        _without("cuda.syncthreads()  # Q and the K tile"),
        expected=RACE, on_gpu=False,
    ),
    _mutant(
        4, "no_trailing_barrier", "The next K tile overwrites the one that slower warps still read.",
        _without("cuda.syncthreads()  # every warp has read the tile"),
        expected=RACE, on_gpu=False,
    ),
    _mutant(
        4, "no_trailing_barrier_v", "The next V tile overwrites the one that slower warps still read.",
        _without("cuda.syncthreads()  # every warp has read V"),
        expected=RACE, on_gpu=False,
    ),
    _mutant(
        4, "return_before_barriers", "Warps past the last row return; the others wait at a barrier.",
        ("visible = interval(row, seq_q, seq_k, causal)[1] if row < seq_q else 0",
         "if row >= seq_q:\n            return\n        visible = interval(row, seq_q, seq_k, causal)[1]"),
        expected=BARRIER, on_gpu=False,
    ),
    _mutant(
        4, "barrier_in_branch", "A barrier is inside a condition that not all threads meet.",
        ("            cuda.syncthreads()  # the V tile",
         "            if p > 0:\n                cuda.syncthreads()  # the V tile"),
        expected=BARRIER, on_gpu=False,
    ),
    _mutant(
        4, "tail_not_zeroed", "Tile rows past the last key keep what shared memory held: 0 * NaN.",
        ("store4(tile, (row, c), zero, zero, zero, zero)", "pass", "common"),
        ("store4(tile, (row, c + 4), zero, zero, zero, zero)", "pass", "common"),
        expected=(*MEMORY, *VALUE), on_gpu=False,
    ),
    _mutant(
        4, "tail_unmasked", "The keys of the tile past the last key get a weight of exp(0 - max).",
        ("            p = float32(0)\n", "            p = math.exp(-row_max)\n"),
    ),
    _mutant(
        4, "p_transposed", "P is stored [keys, rows] in memory made for [rows, keys].",
        ("p_smem[warp, lane] = p", "p_smem[lane, warp] = p"), expected=MEMORY, on_gpu=False,
    ),
    _mutant(
        4, "causal_ignored", "The mask tests the length only, so every row sees the future.",
        ("interval(row, seq_q, seq_k, causal)[1] if", "seq_k if"),
    ),
    _mutant(
        4, "tail_rows_written", "Warps past the last row write their output too.",
        ("        if row < seq_q:\n            for part", "        if row >= 0:\n            for part"),
        expected=(*MEMORY, "guard"), on_gpu=False,
    ),
)  # fmt: skip

STAGE_05 = (
    _mutant(
        5, "m_from_zero", "The running max starts at 0: where all scores are very negative, 0 / 0.",
        ("m = float32(-math.inf)\n        l", "m = float32(0)\n        l"),
    ),
    _mutant(
        5, "m_from_tiny", "The running max starts at 1e-30, which is larger than any negative score.",
        ("m = float32(-math.inf)\n        l", "m = float32(1e-30)\n        l"),
    ),
    _mutant(
        5, "o_not_rescaled", "When the running max grows, l is rescaled and O is not.",
        ("o_rmem[part] *= rescale", "o_rmem[part] *= float32(1)"),
    ),
    _mutant(
        5, "l_not_rescaled", "When the running max grows, O is rescaled and l is not.",
        ("l = l * rescale + p", "l = l + p"),
    ),
    _mutant(
        5, "l_rescaled_twice", "The running sum is rescaled twice.",
        ("l = l * rescale + p", "l = l * rescale * rescale + p"),
    ),
    _mutant(
        5, "o_rescaled_after", "O is rescaled after the new tile was added, so the new tile shrinks too.",
        ("                o_rmem[part] *= rescale\n", "                o_rmem[part] *= float32(1)\n"),
        ("            cuda.syncthreads()  # every warp has read K",
         "            for part in range(PARTS):\n                o_rmem[part] *= rescale\n"
         "            cuda.syncthreads()  # every warp has read K"),
    ),
    _mutant(
        5, "rescale_inverted", "The rescale factor is exp(new m - m).",
        ("math.exp(m - m_ref)", "math.exp(m_ref - m)"),
    ),
    _mutant(
        5, "m_not_kept", "The running max is not carried to the next tile.",
        ("            m = m_new\n", "            m = m + float32(0)\n"),
    ),
    _mutant(
        5, "minus_inf_minus_inf", "A row that has seen no key computes exp(-inf - -inf), which is NaN.",
        ("m_ref = m_new if m_new > float32(-math.inf) else float32(0)", "m_ref = m_new"), expected=NO_KEY,
    ),
    _mutant(
        5, "tail_unmasked", "The zero rows past the last key take part with a score of 0.",
        ("if first_key + lane < visible else float32(-math.inf)",
         "if first_key + lane < visible or visible == seq_k else float32(-math.inf)"),
    ),
    _mutant(
        5, "wrong_kv_head", "Query head h reads K/V head h % H_kv instead of h // group.",
        ("h_kv = h // (q.shape[1] // k.shape[1])", "h_kv = h % k.shape[1]"),
    ),
    _mutant(
        5, "lse_without_max", "LSE is log(l): the running max is forgotten.",
        ("m + math.log(l)", "math.log(l)"),
    ),
    _mutant(
        5, "lse_in_base_two", "LSE is returned in base 2.",
        ("m + math.log(l)", "m + math.log2(l)"),
    ),
    _mutant(
        5, "no_barrier_before_tile", "K and V are read while other warps still write them.",
        _without("cuda.syncthreads()  # Q and the tiles"),
        expected=RACE, on_gpu=False,
    ),
    _mutant(
        5, "no_trailing_barrier", "The next tile overwrites the one that slower warps still read.",
        _without("cuda.syncthreads()  # every warp has read K"),
        expected=RACE, on_gpu=False,
    ),
    _mutant(
        5, "no_syncwarp_after_p", "A lane reads weights of P that its neighbours may not have written yet.",
        _without("cuda.syncwarp()  # the warp's row of P"),
        expected=RACE, on_gpu=False,
    ),
    _mutant(
        5, "window_without_its_first_key", "Of the keys before the diagonal a window takes one too few.",
        ("before_window(distance,", "before_window(distance + 1,", "features"),
    ),
    _mutant(
        5, "window_without_its_last_key", "The right end of a window is taken for the end, exclusive.",
        ("else options[WINDOW][1])", "else options[WINDOW][1] - 1)", "features"),
    ),
    _mutant(
        5, "window_top_left", "A window and ALiBi count from row = key, not from the last row and key.",
        ("diagonal(row, seq_q, seq_k) - first_key", "row - first_key"),
    ),
    _mutant(
        5, "softcap_after_mask", "The softcap makes -inf a number, so masked keys take part.",
        ("            score = logit(", "            capped = logit("),
        ("score if first_key + lane < visible else float32(-math.inf)",
         "capped if first_key + lane < visible else logit(float32(-math.inf), 0, slope, options)"),
    ),
    _mutant(
        5, "alibi_before_softcap", "The softcap is applied to the score and ALiBi together.",
        ("options[SOFTCAP] * math.tanh(score / options[SOFTCAP])",
         "options[SOFTCAP] * math.tanh((score - slope * float32(abs(distance))) / options[SOFTCAP])",
         "features"),
        (
            "score -= slope * float32(abs(distance))",
            "score -= slope * float32(abs(distance)) if SOFTCAP == ABSENT else float32(0)",
            "features",
        ),
    ),
    _mutant(
        5, "slope_of_the_first_head", "Every head has the slope of the first.",
        ("slopes.shape[0], cuda.blockIdx.y]", "slopes.shape[0], 0]", "features"),
    ),
    _mutant(
        5, "slope_of_the_first_batch", "Slopes [B, H] are read as if they were [H].",
        ("slopes[number % slopes.shape[0],", "slopes[0,", "features"),
    ),
    _mutant(
        5, "sink_in_every_lane", "All 32 lanes begin with the sink, so it counts 32 times.",
        ("float32(1 if lane == 0 else 0)", "float32(1)", "features"),
    ),
    _mutant(
        5, "lse_without_sink", "The LSE of a row that sees no key is -inf, also where there is a sink.",
        ("if visible > 0 or SINKS else", "if visible > 0 else"),
    ),
    _mutant(
        5, "seqused_k_ignored", "Keys that do not count are read, NaN among them.",
        ("used = max(0, options[USED][number])", "used = k.shape[2]", "features"),
    ),
    _mutant(
        5, "next_sequence_read", "The tiles of K and V go on into the next sequence.",
        ("k, v = k[:, :, key:end_key], v[:, :, key:end_key]", "k, v = k[:, :, key:], v[:, :, key:]",
         "features"),
    ),
    _mutant(
        5, "last_tile_of_a_sequence", "Row tiles are rounded down: those of a sequence's last rows are lost.",
        ("tiles = (end - row + rows - 1) // rows", "tiles = (end - row) // rows", "features"),
        expected=UNWRITTEN,
    ),
)  # fmt: skip

HISTORY = "stage06_history"  # the variants that led to register tiles have a file of their own

STAGE_06 = (
    _mutant(
        6, "m_from_zero", "The running max starts at 0: where all scores are very negative, 0 / 0.",
        ("m[r], l[r] = NOTHING, float32(0)", "m[r], l[r] = float32(0), float32(0)"),
    ),
    _mutant(
        6, "o_not_rescaled", "When the running max grows, l is rescaled and O is not.",
        ("o_rmem[r, i] *= rescale", "o_rmem[r, i] *= float32(1)"),
    ),
    _mutant(
        6, "l_not_rescaled", "When the running max grows, O is rescaled and l is not.",
        ("l[r] *= rescale", "l[r] *= float32(1)"),
    ),
    _mutant(
        6, "sum_of_own_thread", "Each thread divides by the sum of its own keys.",
        ("row_sum(l[r])", "l[r]"),
    ),
    _mutant(
        6, "tiles_of_the_first_row", "Tiles that the first row does not see are skipped for all rows.",
        ("interval(last_row, seq_q", "interval(first_row, seq_q"),
    ),
    _mutant(
        6, "mask_of_whole_tiles", "Tiles are skipped, but inside a tile the causal mask is forgotten.",
        ("if col + COLS * j < seen", "if first_key + col + COLS * j < seq_k"),
    ),
    _mutant(
        6, "columns_mixed", "Components are stored side by side: at D = 64 that happens to be right.",
        ("COLS * (i // 4 * 4) + 4 * col + i % 4", "MINE * col + i"),
    ),
    _mutant(
        6, "wrong_kv_head", "Query head h reads K/V head h % H_kv instead of h // group.",
        ("h_kv = h // (q.shape[1] // k.shape[1])", "h_kv = h % k.shape[1]"),
    ),
    _mutant(
        6, "no_barrier_before_p", "P overwrites the K tile that slower warps still read.",
        _without("cuda.syncthreads()  # every warp has read the K tile"), expected=RACE, on_gpu=False,
    ),
    _mutant(
        6, "no_trailing_barrier", "The next tiles overwrite what slower warps still read.",
        _without("cuda.syncthreads()  # every warp has read V"), expected=RACE, on_gpu=False,
    ),
    _mutant(
        6, "no_syncwarp_after_p", "A lane reads P while its neighbours may still write.",
        _without("cuda.syncwarp()  # the warp's rows of P"), expected=RACE, on_gpu=False,
    ),
    _mutant(
        6, "q_outer_mask_one_too_many", "`<=` for `<`: a row sees the key after its last one.",
        ("if lane < seen", "if lane <= seen", HISTORY), variant="q_outer",
    ),
    _mutant(
        6, "q_outer_m_from_zero", "The running max starts at 0: where all scores are very negative, 0 / 0.",
        ("m[slot], l[slot] = NOTHING, float32(0)", "m[slot], l[slot] = float32(0), float32(0)", HISTORY),
        variant="q_outer",
    ),
    _mutant(
        6, "q_outer_no_trailing_barrier", "The next tile overwrites the one that slower warps still read.",
        (*_without("cuda.syncthreads()  # every warp has read K"), HISTORY),
        expected=RACE, variant="q_outer", on_gpu=False,
    ),
    _mutant(
        6, "kv_outer_local_l_not_rescaled", "When the running max grows, O is rescaled and l is not.",
        ("l * rescale + warp_sum(p)", "l + warp_sum(p)", HISTORY), variant="kv_outer_local",
    ),
    _mutant(
        6, "kv_outer_local_one_state_for_all", "All rows of a warp share the state of the first.",
        ("my_row + i if SHARED else i\n                    seen",
         "my_row + i if SHARED else 0\n                    seen", HISTORY),
        expected=(*VALUE, *MEMORY), variant="kv_outer_local",
    ),
    _mutant(
        6, "kv_outer_local_wrong_kv_head", "Query head h reads K/V head h % H_kv instead of h // group.",
        ("h_kv = h // (q.shape[1] // k.shape[1])", "h_kv = h % k.shape[1]", HISTORY),
        variant="kv_outer_local",
    ),
    _mutant(
        6, "kv_outer_shared_warps_share_state", "Every warp keeps its rows in the slots of warp 0.",
        ("my_row + i if SHARED else i\n                    seen", "i\n                    seen", HISTORY),
        expected=RACE, variant="kv_outer_shared", on_gpu=False,
    ),
    _mutant(
        6, "kv_outer_shared_no_syncwarp_after_p", "A lane reads P while its neighbours may still write.",
        (*_without("cuda.syncwarp()  # the warp's row of P"), HISTORY),
        expected=RACE, variant="kv_outer_shared", on_gpu=False,
    ),
    _mutant(
        6, "kv_outer_shared_no_syncwarp_before_p", "The next row's P overwrites one still being read.",
        (*_without("cuda.syncwarp()  # every lane has read P"), HISTORY),
        expected=RACE, variant="kv_outer_shared", on_gpu=False,
    ),
)  # fmt: skip

MUTANTS: tuple[Mutant, ...] = (
    *(*STAGE_01, *STAGE_02, *STAGE_03, *STAGE_04, *STAGE_05, *STAGE_06),
    *CUDA_MUTANTS,
)
