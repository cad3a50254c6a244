"""Wrong answers to lesson 05: the online softmax."""

from . import Wrong

MAXIMUM = "            m_new = max(m, warp_max(score))\n"
REFERENCE = "m_ref = m_new if m_new > float32(-math.inf) else float32(0)"
RESCALE = "            rescale = math.exp(m - m_ref)\n"
SUM = "            l = l * rescale + p\n"
KEPT = "            m = m_new\n"
STORED = "            p_smem[warp, lane] = p\n"
SYNC = "            cuda.syncwarp()  # the warp's row of P is whole before its lanes read all of it\n"
LOOP = "            for part in range(PARTS):\n                o_rmem[part] *= rescale\n"

WRONG = (
    Wrong(
        "o_not_rescaled", "l is rescaled, O is forgotten.",
        ((LOOP, ""),),
        (r"`o_rmem\[0\]`.*scaled to the new m", r"`l` are right there", r"never changes `o_rmem`"),
    ),
    Wrong(
        "l_not_rescaled", "O is rescaled, l is forgotten.",
        ((SUM, "            l += p\n"),),
        (r"`l` \(this lane's share", r"tile 1"),
        "l += p",
    ),
    Wrong(
        "new_weight_rescaled_too", "The new weight is added before the sum is rescaled.",
        ((SUM, "            l = (l + p) * rescale\n"),),
        (r"`l` \(this lane's share", r"tile 0"),
        "l = (l + p) * rescale",
    ),
    Wrong(
        "factor_upside_down", "The factor is exp(new m - old m).",
        (("math.exp(m - m_ref)", "math.exp(m_ref - m)"),),
        (r"not a number", r"inf"),
        "l = l * rescale + p",
    ),
    Wrong(
        "m_updated_too_early", "m already has its new value when the factor is computed: the factor is 1.",
        ((RESCALE, KEPT + RESCALE), (SUM + KEPT, SUM)),
        (r"`l` \(this lane's share", r"`m` and `p_smem\[warp, lane\]` are right there"),
        "l = l * rescale + p",
    ),
    Wrong(
        "m_not_kept", "The new maximum is not carried to the next tile.",
        ((KEPT, ""),),
        (r"`m` \(the running max", r"never changes `m`"),
    ),
    Wrong(
        "maximum_of_one_lane", "Each lane keeps a maximum of its own.",
        (("warp_max(score)", "score"),),
        (r"`m` \(the running max", r"32 lanes of a warp should hold the same value"),
        "m_new = max(m, score)",
    ),
    Wrong(
        "maximum_of_the_tile", "The maximum of the tile replaces the running one.",
        (("max(m, warp_max(score))", "warp_max(score)"),),
        (r"`m` \(the running max", r"tile 1"),
        "m_new = warp_max(score)",
    ),
    Wrong(
        "minus_inf_minus_inf", "While no key has been seen, -inf - -inf.",
        ((REFERENCE, "m_ref = m_new"),),
        (r"not a number", r"-inf and -inf", r"70 rows, 33 keys"),
        "rescale = math.exp(m - m_ref)",
    ),
    Wrong(
        "sum_over_the_warp", "l gets the sum of all lanes, and the 32 equal sums are added up once more.",
        ((SUM, "            l = l * rescale + warp_sum(p)\n"),),
        (r"`l` \(this lane's share", r"Each lane should hold a value of its own"),
        "l = l * rescale + warp_sum(p)",
    ),
    Wrong(
        "weight_with_the_old_maximum", "The weight is exp(score - old m).",
        (("math.exp(score - m_ref)", "math.exp(score - m)"),),
        (r"the weight exp\(score - m\)", r"infinite"),
        "p = math.exp(score - m)",
    ),
    Wrong(
        "no_maximum", "exp(score), as in the formula of softmax.",
        ((MAXIMUM, "            m_new = float32(0)\n"),),
        (r"`m` \(the running max", r"every score below"),
        "m_new = float32(0)",
    ),
    Wrong(
        "score_instead_of_weight", "The scores go to p_smem.",
        ((STORED, "            p_smem[warp, lane] = score\n"),),
        (r"the weight exp\(score - m\)", r"`m` is right there"),
        "p_smem[warp, lane] = score",
    ),
    Wrong(
        "weights_divided_at_once", "Each tile's weights are divided by l, and the output is divided again.",
        ((STORED, "            p_smem[warp, lane] = p / l\n"),),
        (r"the weight exp\(score - m\)", r"`m` is right there"),
        "p_smem[warp, lane] = p / l",
    ),
    Wrong(
        "no_syncwarp", "A lane reads weights that its neighbours may not have written yet.",
        ((SYNC, ""),),
        (r"race", r"no barrier between"),
        "p_smem[warp, lane] = p",
    ),
    Wrong(
        "p_not_stored", "The weights stay in the lanes.",
        ((STORED + SYNC, ""),),
        (r"uninitialised read", r"p_smem"),
    ),
    Wrong(
        "barrier_for_one_warp", "All 16 warps wait where one would do.",
        ((SYNC, SYNC.replace("syncwarp", "syncthreads")),),
        (r"barriers", r"1,536", r"all 16 warps wait"),
    ),
    Wrong(
        "sum_reduced_in_every_tile", "The shares are added up in every tile, where the last would do.",
        ((SUM, "            l = l * rescale + warp_sum(p) / float32(32)\n"),),
        (r"shuffles", r"5,760", r"before the last tile"),
    ),
    Wrong(
        "factor_in_the_loop", "The exponential of the factor is computed for each component.",
        (
            ("o_rmem[part] *= rescale", "o_rmem[part] *= math.exp(m_old - m_ref)"),
            (RESCALE, RESCALE + "            m_old = m\n"),
        ),
        (r"exponentials", r"inside a loop"),
    ),
    Wrong(
        "e_rounded",
        "2.718 for e: off by less than float16 shows, but not the LSE.",
        (),
        ("LSE", r"the weight exp\(score - m\)", "`p` is set in line 4 of your answer",),
        "p = float32(2.718) ** (score - m_ref)",
        text="""\
m_new = max(m, warp_max(score))
m_ref = m_new if m_new > float32(-math.inf) else float32(0)
rescale = float32(2.718) ** (m - m_ref)
p = float32(2.718) ** (score - m_ref)
l = l * rescale + p
m = m_new
p_smem[warp, lane] = p
cuda.syncwarp()
for part in range(PARTS):
    o_rmem[part] *= rescale
""",
    ),
    Wrong(
        "base_2_by_half",
        "The weight is converted to base 2, the factor is not.",
        (),
        ("`l` .this lane's share", "It reads `rescale`, from line 3 of your answer",),
        "l = l * rescale + p",
        text="""\
m_new = max(m, warp_max(score))
m_ref = m_new if m_new > float32(-math.inf) else float32(0)
rescale = math.exp2(m - m_ref)
p = math.exp2((score - m_ref) * float32(1.4426950408889634))
l = l * rescale + p
m = m_new
p_smem[warp, lane] = p
cuda.syncwarp()
for part in range(PARTS):
    o_rmem[part] *= rescale
""",
    ),
    Wrong(
        "maximum_in_base_2",
        "m is kept in base 2, which the LSE does not expect.",
        (),
        (r"1\.443 times what it should be in every lane, log2\(e\)",),
        "m_new = max(m, warp_max(score * float32(1.4426950408889634)))",
        text="""\
m_new = max(m, warp_max(score * float32(1.4426950408889634)))
m_ref = m_new if m_new > float32(-math.inf) else float32(0)
rescale = math.exp2(m - m_ref)
p = math.exp2(score * float32(1.4426950408889634) - m_ref)
l = l * rescale + p
m = m_new
p_smem[warp, lane] = p
cuda.syncwarp()
for part in range(PARTS):
    o_rmem[part] *= rescale
""",
    ),
    Wrong(
        "continue_without_keys",
        "Warps that see no key of the tile skip its barrier.",
        (),
        ("divergent barrier", "Threads leave at line 3 of your answer, `continue`",),
        "continue",
        text="""\
m_new = max(m, warp_max(score))
if m_new == float32(-math.inf):
    continue
rescale = math.exp(m - m_new)
p = math.exp(score - m_new)
l = l * rescale + p
m = m_new
p_smem[warp, lane] = p
cuda.syncwarp()
for part in range(PARTS):
    o_rmem[part] *= rescale
""",
    ),
)  # fmt: skip
