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

# A right answer of its own build.
OWN_BUILD = """\
m_new = max(m, warp_max(score))
m_ref = m_new if m_new > float32(-math.inf) else float32(0)
rescale = math.exp(m - m_ref)
p = math.exp(score - m_ref)
l = l * rescale + p
m = m_new
p_smem[warp, lane] = p
cuda.syncwarp()
for part in range(PARTS):
    o_rmem[part] *= rescale
"""
LOG2_E = "float32(1.4426950408889634)"

WRONG = (
    Wrong(
        "o_not_rescaled", "l is rescaled, O is forgotten.",
        ((LOOP, ""),),
        (r"`o_rmem\[0\]`.*scaled to the new m", "`l` are right there"),
        line="cuda.syncwarp()  # the warp's row of P is whole before its lanes read all of it",
        cause="O not rescaled",
    ),
    Wrong(
        "l_not_rescaled", "O is rescaled, l is forgotten.",
        ((SUM, "            l += p\n"),),
        (r"`l` \(this lane's share", r"tile 1"),
        "l += p",
        cause="l not rescaled",
    ),
    Wrong(
        "new_weight_rescaled_too", "The new weight is added before the sum is rescaled.",
        ((SUM, "            l = (l + p) * rescale\n"),),
        (r"`l` \(this lane's share", r"tile 0"),
        "l = (l + p) * rescale",
        cause="weight rescaled too",
    ),
    Wrong(
        "factor_upside_down", "The factor is exp(new m - old m).",
        (("math.exp(m - m_ref)", "math.exp(m_ref - m)"),),
        (r"not a number", r"inf"),
        "rescale = math.exp(m_ref - m)",
        cause="argument",
    ),
    Wrong(
        "m_updated_too_early", "m already has its new value when the factor is computed: the factor is 1.",
        ((RESCALE, KEPT + RESCALE), (SUM + KEPT, SUM)),
        (r"`l` \(this lane's share", r"`m` and `p_smem\[warp, lane\]` are right there"),
        "m = m_new",
        cause="nothing rescaled",
    ),
    Wrong(
        "m_not_kept", "The new maximum is not carried to the next tile.",
        ((KEPT, ""),),
        (r"`m` \(the running max",),
        line="l = l * rescale + p",
        cause="last tile only",
    ),
    Wrong(
        "maximum_of_one_lane", "Each lane keeps a maximum of its own.",
        (("warp_max(score)", "score"),),
        (r"`m` \(the running max",),
        "m_new = max(m, score)",
        cause="maximum of a lane",
    ),
    Wrong(
        "maximum_of_the_tile", "The maximum of the tile replaces the running one.",
        (("max(m, warp_max(score))", "warp_max(score)"),),
        (r"`m` \(the running max", r"tile 1"),
        "m_new = warp_max(score)",
        cause="maximum of the tile",
    ),
    Wrong(
        "minus_inf_minus_inf", "While no key has been seen, -inf - -inf.",
        ((REFERENCE, "m_ref = m_new"),),
        (r"not a number", r"-inf and -inf", r"70 rows, 33 keys"),
        "m_ref = m_new",
        cause="value",
    ),
    Wrong(
        "sum_over_the_warp", "l gets the sum of all lanes, and the 32 equal sums are added up once more.",
        ((SUM, "            l = l * rescale + warp_sum(p)\n"),),
        (r"`l` \(this lane's share",),
        "l = l * rescale + warp_sum(p)",
        cause="sum of the warp",
    ),
    Wrong(
        "weight_with_the_old_maximum", "The weight is exp(score - old m).",
        (("math.exp(score - m_ref)", "math.exp(score - m)"),),
        (r"the weight exp\(score - m\)", r"infinite"),
        "p = math.exp(score - m)",
        cause="weight with the old maximum",
    ),
    Wrong(
        "no_maximum", "exp(score), as in the formula of softmax.",
        ((MAXIMUM, "            m_new = float32(0)\n"),),
        (r"`m` \(the running max", r"every score below"),
        "m_new = float32(0)",
        cause="value",
    ),
    Wrong(
        "score_instead_of_weight", "The scores go to p_smem.",
        ((STORED, "            p_smem[warp, lane] = score\n"),),
        (r"the weight exp\(score - m\)", r"`m` is right there"),
        "p_smem[warp, lane] = score",
        cause="score for weight",
    ),
    Wrong(
        "weights_divided_at_once", "Each tile's weights are divided by l, and the output is divided again.",
        ((STORED, "            p_smem[warp, lane] = p / l\n"),),
        (r"the weight exp\(score - m\)", r"`m` is right there"),
        "p_smem[warp, lane] = p / l",
        cause="weight divided",
    ),
    Wrong(
        "no_syncwarp", "A lane reads weights that its neighbours may not have written yet.",
        ((SYNC, ""),),
        (r"race", r"no barrier between"),
        "p_smem[warp, lane] = p",
        cause="barrier left out",
    ),
    Wrong(
        "p_not_stored", "The weights stay in the lanes.",
        ((STORED + SYNC, ""),),
        (r"uninitialised read", r"p_smem"),
        line="m = m_new",
        cause="several places",
    ),
    Wrong(
        "barrier_for_one_warp", "All 16 warps wait where one would do.",
        ((SYNC, SYNC.replace("syncwarp", "syncthreads")),),
        (r"barriers", r"1,536", r"all 16 warps wait"),
        line="cuda.syncthreads()  # the warp's row of P is whole before its lanes read all of it",
        cause="function",
    ),
    Wrong(
        "sum_reduced_in_every_tile", "The shares are added up in every tile, where the last would do.",
        ((SUM, "            l = l * rescale + warp_sum(p) / float32(32)\n"),),
        (r"shuffles", r"5,760", r"before the last tile"),
        line="l = l * rescale + warp_sum(p) / float32(32)",
        cause="value",
    ),
    Wrong(
        "factor_in_the_loop", "The exponential of the factor is computed for each component.",
        (
            ("o_rmem[part] *= rescale", "o_rmem[part] *= math.exp(m_old - m_ref)"),
            (RESCALE, RESCALE + "            m_old = m\n"),
        ),
        (r"exponentials", r"inside a loop"),
        line="o_rmem[part] *= math.exp(m_old - m_ref)",
        cause="value",
    ),
    Wrong(
        "e_rounded",
        "2.718 for e: off by less than float16 shows, but not the LSE.",
        (
            ("math.exp(m - m_ref)", "float32(2.718) ** (m - m_ref)"),
            ("math.exp(score - m_ref)", "float32(2.718) ** (score - m_ref)"),
        ),
        ("LSE", r"the weight exp\(score - m\)", "`p` is set in line 4 of your answer",),
        "p = float32(2.718) ** (score - m_ref)",
        text=OWN_BUILD,
        cause="value",
    ),
    Wrong(
        "base_2_by_half",
        "The weight is converted to base 2, the factor is not.",
        (
            ("math.exp(m - m_ref)", "math.exp2(m - m_ref)"),
            ("math.exp(score - m_ref)", f"math.exp2((score - m_ref) * {LOG2_E})"),
        ),
        ("`l` .this lane's share",),
        "rescale = math.exp2(m - m_ref)",
        text=OWN_BUILD,
        cause="function",
    ),
    Wrong(
        "maximum_in_base_2",
        "m is kept in base 2, which the LSE does not expect.",
        (
            ("warp_max(score)", f"warp_max(score * {LOG2_E})"),
            ("math.exp(m - m_ref)", "math.exp2(m - m_ref)"),
            ("math.exp(score - m_ref)", f"math.exp2(score * {LOG2_E} - m_ref)"),
        ),
        (),
        "rescale = math.exp2(m - m_ref)",
        text=OWN_BUILD,
        cause="several places",
    ),
    Wrong(
        "continue_without_keys",
        "Warps that see no key of the tile skip its barrier.",
        (
            ("m_ref = m_new if m_new > float32(-math.inf) else float32(0)\n",
             "if m_new == float32(-math.inf):\n    continue\n"),
            ("math.exp(m - m_ref)", "math.exp(m - m_new)"),
            ("math.exp(score - m_ref)", "math.exp(score - m_new)"),
        ),
        ("divergent barrier", "Threads leave at line 3 of your answer, `continue`",),
        "if m_new == float32(-math.inf):",
        text=OWN_BUILD,
        cause="extra condition",
    ),
    Wrong(
        "factor_upside_down_but_guarded",
        "The factor is exp(new - old): sums grow where they should shrink.",
        (),
        (),
        "factor = math.exp(m_new - m) if m > float32(-math.inf) else float32(0)",
        text="""\
m_new = max(m, warp_max(score))
factor = math.exp(m_new - m) if m > float32(-math.inf) else float32(0)
p = math.exp(score - m_new) if m_new > float32(-math.inf) else float32(0)
p_smem[warp, lane] = p
l = factor * l + p
for part in range(PARTS):
    o_rmem[part] *= factor
m = m_new
cuda.syncwarp()
""",
        cause="factor upside down",
    ),
    Wrong(
        "guard_on_the_old_maximum",
        "The guard against -inf - -inf asks the old m, so the weights of the first tile are all 0.",
        (),
        (),
        "e = float32(0)",
        text="""\
m_next = max(m, warp_max(score))
if m == float32(-math.inf):
    fac = float32(0)
    e = float32(0)
else:
    fac = math.exp(m - m_next)
    e = math.exp(score - m_next)
p_smem[warp, lane] = e
l = l * fac + e
for part in range(PARTS):
    o_rmem[part] *= fac
m = m_next
cuda.syncwarp()
""",
        cause="first tile lost",
    ),
    Wrong(
        "m_assigned_first",
        "m is assigned before the factor is computed, which is never anything but 1.",
        (),
        (),
        "rescale = float32(1)",
        text="""\
new_max = warp_max(score)
m = max(m, new_max)
weight = float32(0)
rescale = float32(1)
if m != float32(-math.inf):
    weight = math.exp(score - m)
    if new_max > m:
        rescale = math.exp(m - new_max)
l = l * rescale + weight
for part in range(PARTS):
    o_rmem[part] = o_rmem[part] * rescale
p_smem[warp, lane] = weight
cuda.syncwarp()
""",
        cause="nothing rescaled",
    ),
    Wrong(
        "masked_lanes_skip",
        "Masked lanes skip the whole update, warp_max included.",
        (),
        (),
        "m_new = max(m, warp_max(score))",
        text="""\
p_smem[warp, lane] = 0
if score > float32(-math.inf):
    m_new = max(m, warp_max(score))
    c = math.exp(m - m_new)
    p = math.exp(score - m_new)
    l = l * c + p
    for part in range(PARTS):
        o_rmem[part] *= c
    p_smem[warp, lane] = p
    m = m_new
cuda.syncwarp()
""",
        cause="lanes missing",
    ),
    Wrong(
        "maximum_of_this_tile",
        "The maximum of this tile is the new m, which can fall.",
        (),
        (),
        "tile_max = warp_max(score)",
        text="""\
tile_max = warp_max(score)
if tile_max > float32(-math.inf):
    scale_old = math.exp(m - tile_max)
    w = math.exp(score - tile_max)
    l *= scale_old
    l += w
    for part in range(PARTS):
        o_rmem[part] *= scale_old
    m = tile_max
else:
    w = float32(0)
p_smem[warp, lane] = w
cuda.syncwarp()
""",
        cause="maximum of the tile",
    ),
    Wrong(
        "only_the_weight_guarded",
        "The weight is guarded against NaN, the factor is not.",
        (),
        (),
        "alpha = math.exp(m - m_new)",
        text="""\
m_new = max(m, warp_max(score))
alpha = math.exp(m - m_new)
if m_new == float32(-math.inf):
    p = float32(0)
else:
    p = math.exp(score - m_new)
l = l * alpha + p
for part in range(PARTS):
    o_rmem[part] = o_rmem[part] * alpha
m = m_new
p_smem[warp, lane] = p
cuda.syncwarp()
""",
        cause="several places",
    ),
    Wrong(
        "sum_of_the_warp",
        "Each lane adds the sum over the warp to its own share.",
        (),
        (),
        "l = l * shrink + warp_sum(weight)",
        text="""\
new_max = max(m, warp_max(score))
if new_max == float32(-math.inf):
    shrink, weight = float32(1), float32(0)
else:
    shrink = math.exp(m - new_max)
    weight = math.exp(score - new_max)
m = new_max
l = l * shrink + warp_sum(weight)
for i in range(PARTS):
    o_rmem[i] = o_rmem[i] * shrink
p_smem[warp, lane] = weight
cuda.syncwarp()
""",
        cause="sum of the warp",
    ),
    Wrong(
        "syncwarp_too_early",
        "The warp meets before the weight is stored.",
        (),
        (),
        "p_smem[warp, lane] = w",
        text="""\
m_new = max(m, warp_max(score))
seen = m_new > float32(-math.inf)
r = math.exp(m - m_new) if seen else float32(1)
w = math.exp(score - m_new) if seen else float32(0)
m = m_new
l = l * r + w
for part in range(PARTS):
    o_rmem[part] *= r
cuda.syncwarp()
p_smem[warp, lane] = w
""",
        cause="unordered",
    ),
)  # fmt: skip
