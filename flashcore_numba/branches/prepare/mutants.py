"""Wrong versions of the kernel: what is easily got wrong between projections and pages."""

from flashcore_numba.checks.mutation import Mutant
from flashcore_numba.stages.edited import Edit

KERNEL = "prepare_pages.cu"
WRONG = ("value", "property")
PLACE = ("value", "property", "guard", "unwritten", "memory", "race")  # rows that go to another place


def _mutant(name: str, mistake: str, *edits: tuple[str, str], expected: tuple[str, ...] = WRONG) -> Mutant:
    made = tuple(Edit(old, new, KERNEL) for old, new in edits)
    return Mutant("prepare/pages", name, mistake, made, expected)


NORM = (
    _mutant(
        "eps_forgotten", "The root is taken of the mean square alone.",
        ("rsqrtf(sum / D + eps)", "rsqrtf(sum / D)"),
    ),
    _mutant(
        "eps_outside", "eps is added to the root, not to the mean square.",
        ("rsqrtf(sum / D + eps)", "(1.0f / (sqrtf(sum / D) + eps))"),
    ),
    _mutant("sum_for_mean", "The squares are not divided by D.", ("sum / D + eps", "sum + eps")),
    _mutant(
        "mean_over_the_warp", "The sum takes in the other rows of the warp.",
        ("lanes < LANES; lanes *= 2", "lanes < 32; lanes *= 2"),
    ),
    _mutant(
        "half_of_the_row", "The last exchange of the sum is left out: a lane has half of its row.",
        ("lanes < LANES; lanes *= 2", "2 * lanes < LANES; lanes *= 2"),
    ),
    _mutant("weights_of_q", "K takes the weights of Q.", ("is_q ? q_weight : k_weight", "q_weight")),
    _mutant(
        "v_is_normed", "The rows of V are normed like those of K.",
        ("if (!is_v || E4M3) {  // rows", "if (true) {  // rows"), ("normed && !is_v", "normed"),
    ),
)  # fmt: skip
ROPE = (
    _mutant(
        "turned_back", "The rotation goes the other way.",
        ("a * cosines[i] - b", "a * cosines[i] + b"), ("b * cosines[i] + a", "b * cosines[i] - a"),
    ),
    _mutant(
        "first_overwritten", "The second of a pair takes the first after its rotation.",
        ("b * cosines[i] + a * sines", "b * cosines[i] + given.x[0][i] * sines"),
    ),
    _mutant(
        "weights_after_rope", "The weights of the norm are multiplied with what is rotated already.",
        ("*= weights.x[i / 8][i % 8]", "*= turns ? 1.0f : weights.x[i / 8][i % 8]"),
        ("a * cosines[i] - b * sines[i];",
         "(a * cosines[i] - b * sines[i]) * (weight ? weights.x[0][i] : 1.0f);"),
        ("b * cosines[i] + a * sines[i];",
         "(b * cosines[i] + a * sines[i]) * (weight ? weights.x[1][i] : 1.0f);"),
    ),
    _mutant(
        "row_of_the_token", "The row of the tables is the token's number, not its position.",
        ("rotated ? positions[token] : 0", "rotated ? token : 0"),
    ),
    _mutant(
        "other_pairs", "The tables are read for the other kind of pairs.",
        ("place = INTERLEAVED ?", "place = !INTERLEAVED ?"), expected=("value", "property", "memory"),
    ),
    _mutant(
        "halves_always", "Interleaved pairs are taken from the two halves of a row.",
        ("INTERLEAVED ? x[i % 2][4 * chunk + i / 2] : x[chunk][i]", "x[chunk][i]"),
    ),
    _mutant(
        "all_columns_turned", "Lanes without pairs rotate what they have: R is taken for D.",
        ("const bool pairs = lane < turned;", "const bool pairs = lane < turned || turned > 2;"),
        expected=("race", "unwritten"),
    ),
    _mutant(
        "q_alone", "The rows of K are stored as they came.",
        ("if (!is_v || E4M3) {  // rows", "if (is_q) {  // rows"),
    ),
    _mutant(
        "tables_packed", "A row of the tables begins where the one before it ends, whatever R is.",
        ("cos + position * cos_row", "cos + position * (long long)(D / 2)"),
        expected=("value", "property", "memory"),
    ),
)  # fmt: skip
PAGES = (
    _mutant(
        "padding_in_slot_0", "A token without a slot is written to the first one.",
        ("const long long slot = slot_mapping[token];",
         "const long long slot = max(0ll, (long long)slot_mapping[token]);"),
        expected=PLACE,
    ),
    _mutant(
        "padding_forgotten", "The slot -1 is taken for a place.",
        ("if (slot < 0 || slot >= slots) return;", ""), expected=PLACE,
    ),
    _mutant(
        "page_of_16", "Pages are taken to have 16 slots.",
        ("(unsigned)slot % page, page_index = (unsigned)slot / page",
         "(unsigned)slot % 16, page_index = (unsigned)slot / 16"),
        expected=PLACE,
    ),
    _mutant(
        "page_and_slot_swapped", "The slot in the page is taken for the page.",
        ("at(page_index, in_page, first_head)", "at(in_page, page_index, first_head)"),
        expected=PLACE,
    ),
    _mutant(
        "pool_is_contiguous", "The strides of the pools are not asked for.",
        ("pool_strides.at(page_index, in_page, first_head)", "(slot * H_kv + first_head) * D"),
        expected=PLACE,
    ),
    _mutant(
        "v_into_k", "The rows of V go where those of K go.", ("(is_v ? v_pool : k_pool)", "k_pool"),
        expected=PLACE,
    ),
    _mutant(
        "one_tile_for_k", "The tiles of K are counted like those of Q.",
        ("is_v ? q_tiles + kv_tiles : q_tiles", "is_v ? 2 * q_tiles : q_tiles"), expected=(*PLACE,),
    ),
    _mutant(
        "last_heads_left_out", "The last tile of Q is left out where it is not whole.",
        ("(H + TILE - 1) / TILE", "max(1, H / TILE)"), expected=("unwritten",),
    ),
    _mutant(
        "high_chunk_lost", "The second chunk of a lane is not stored.",
        ("ptx::store_16((element*)row + high, second.x, second.y, second.z, second.w);", ""),
        expected=("unwritten",),
    ),
    _mutant(
        "q_for_every_token", "The rows of Q are read without their token.",
        ("from_strides.at(0, first_head, token)", "from_strides.at(0, first_head, is_q ? 0 : token)"),
    ),
)  # fmt: skip
SCALED = (
    _mutant(
        "scale_forgotten", "Rows are stored as they are.",
        ("factor /= is_v ? scales.v(head) : scales.k(head)", "factor /= 1.0f"),
    ),
    _mutant(
        "multiplied_by_the_scale", "Rows are multiplied by the scale that readers multiply by.",
        ("factor /= is_v", "factor *= is_v"),
    ),
    _mutant(
        "scale_of_k", "Rows of V are divided by the scale of K.",
        ("is_v ? scales.v(head) : scales.k(head)", "scales.k(head)"),
    ),
    _mutant(
        "scale_of_the_tile", "All rows of a warp are divided by the scale of the first.",
        ("is_v ? scales.v(head) : scales.k(head)", "is_v ? scales.v(0) : scales.k(0)"),
    ),
    _mutant(
        "rounded_twice", "Rows are rounded to the element type before they are rounded to e4m3.",
        ("*(uint2*)&chunks[r][0] =",
         "given.store(chunks[r]), given.load(chunks[r]), *(uint2*)&chunks[r][0] ="),
    ),
    _mutant(
        "halves_exchanged", "The second chunk of a lane is stored in the place of the first.",
        ("*(uint2*)&chunks[r][0] = given.bytes(0);", "*(uint2*)&chunks[r][0] = given.bytes(1);"),
    ),
    _mutant(
        "not_saturated", "Numbers beyond 448 are stored without their highest bits.",
        ("pairs[j] = ptx::pack_e4m3(column(chunk, 2 * j),",
         "pairs[j] = ptx::pack_e4m3(fmodf(column(chunk, 2 * j), 512.0f),"),
    ),
)  # fmt: skip
MUTANTS = (*NORM, *ROPE, *PAGES, *SCALED)
