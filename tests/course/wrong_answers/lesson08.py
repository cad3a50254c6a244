"""Wrong answers to lesson 08: the product of P and V on the tensor core."""

from . import Wrong

LOAD_O = "wmma::load_matrix_sync(o, o_smem, O_LD, wmma::mem_row_major);"
LOAD_P = "wmma::load_matrix_sync(p, p_smem + key, P_LD);"
LOAD_V = "wmma::load_matrix_sync(v, v_smem + key * LD, LD);"
MULTIPLY = "wmma::mma_sync(o, p, v, o);"
STORE_O = "wmma::store_matrix_sync(o_smem, o, O_LD, wmma::mem_row_major);"

# A right answer of its own build.
OWN_BUILD = """\
wmma::fragment<wmma::accumulator, 16, 16, 16, float> o;
wmma::load_matrix_sync(o, o_smem, O_LD, wmma::mem_row_major);
#pragma unroll
for (int c = 0; c < KEYS; c += 16) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, element, wmma::row_major> p;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, element, wmma::row_major> v;
    wmma::load_matrix_sync(p, p_smem + c, P_LD);
    wmma::load_matrix_sync(v, v_smem + c * LD, LD);
    wmma::mma_sync(o, p, v, o);
}
wmma::store_matrix_sync(o_smem, o, O_LD, wmma::mem_row_major);
"""

WRONG = (
    Wrong(
        "starts_at_zero", "The accumulator starts at 0 as in multiply_qk: every tile but the last is lost.",
        ((LOAD_O, "wmma::fill_fragment(o, 0.0f);"),),
        (r"`o_smem\[", "the second time it comes there", "Before that, "),
        "wmma::fill_fragment(o, 0.0f);",
        cause="statement",
    ),
    Wrong(
        "never_loaded", "The accumulator is declared and multiplied, but holds nothing.",
        ((LOAD_O, ""),),
        ("uninitialised read", "last argument of mma_sync, was never loaded or filled"),
        MULTIPLY,
        cause="call left out",
    ),
    Wrong(
        "v_by_columns", "V is taken for its transpose, as K was.",
        (("wmma::row_major> v;", "wmma::col_major> v;"),),
        (r"`o_smem\[", "the first time it comes there"),
        "wmma::fragment<wmma::matrix_b, 16, 16, 16, element, wmma::col_major> v;",
        cause="template argument",
    ),
    Wrong(
        "v_along_its_rows", "16 keys further is taken to be 16 columns further, in V too.",
        (("v_smem + key * LD", "v_smem + key"),),
        ("uninitialised read", "`v_smem` at row 0, column 64", "down the rows of V"),
        LOAD_V.replace("key * LD", "key"),
        cause="argument",
    ),
    Wrong(
        "stride_of_v_for_p", "Rows of P are taken to be as far apart as rows of V.",
        (("p_smem + key, P_LD", "p_smem + key, LD"),),
        ("uninitialised read", "`p_smem` at row", "rows are 40 halves apart"),
        LOAD_P.replace("P_LD", "LD"),
        cause="argument",
    ),
    Wrong(
        "half_of_the_keys", "One product of 16 keys; a tile has 32.",
        (("key < KEYS", "key < 16"),),
        (r"`o_smem\[", "the first time it comes there"),
        "for (int key = 0; key < 16; key += 16) {",
        cause="loop bound",
    ),
    Wrong(
        "not_stored", "The sum stays in the fragment.",
        (("\n" + "    " + STORE_O, ""),),
        (r"`o_smem\[", "is 0, expected", "It is 0 in every lane"),
        "}",
        cause="call left out",
    ),
    Wrong(
        "operands_swapped", "V P instead of P V.",
        (("mma_sync(o, p, v, o)", "mma_sync(o, v, p, o)"),),
        ("does not compile", "a must be a fragment of matrix_a"),
        MULTIPLY.replace("p, v", "v, p"),
        cause="does not compile",
    ),
    Wrong(
        "only_lane_0", "The multiplication is left to one lane.",
        ((MULTIPLY, "if (threadIdx.x % 32 == 0) " + MULTIPLY),),
        ("warp mask", "belongs to the whole warp"),
        "if (threadIdx.x % 32 == 0) " + MULTIPLY,
        cause="extra condition",
    ),
    Wrong(
        "trip_for_each_product", "Right values, and O makes its trip through shared memory for each product.",
        (),
        ("wavefronts of shared memory", "13,696", "the bar is 12,200", "once a tile"),
        "wmma::fragment<wmma::accumulator, 16, 16, 16, float> o;",
        text="""\
for (int key = 0; key < KEYS; key += 16) {
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> o;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, element, wmma::row_major> p;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, element, wmma::row_major> v;
    wmma::load_matrix_sync(o, o_smem, O_LD, wmma::mem_row_major);
    wmma::load_matrix_sync(p, p_smem + key, P_LD);
    wmma::load_matrix_sync(v, v_smem + key * LD, LD);
    wmma::mma_sync(o, p, v, o);
    wmma::store_matrix_sync(o_smem, o, O_LD, wmma::mem_row_major);
}
""",
        cause="shared memory",
    ),
    Wrong(
        "layout_missing", "An accumulator is loaded without saying how it is laid out in memory.",
        ((LOAD_O, LOAD_O.replace(", wmma::mem_row_major", "")),),
        ("does not compile", "also takes its layout"),
        LOAD_O.replace(", wmma::mem_row_major", ""),
        cause="does not compile",
    ),
    Wrong(
        "pointers_multiplied", "The matrices themselves are handed to mma_sync.",
        (),
        ("does not compile", "multiplies fragments", "load them from the pointers"),
        "wmma::mma_sync(o_smem, p_smem, v_smem, o_smem);",
        text="wmma::mma_sync(o_smem, p_smem, v_smem, o_smem);\n",
        cause="does not compile",
    ),
    Wrong(
        "operand_without_layout", "The type of P does not say how it is laid out in memory.",
        ((", element, wmma::row_major> p;", ", element> p;"),),
        ("does not compile", "ends with wmma::row_major or col_major"),
        LOAD_P,
        cause="does not compile",
    ),
    Wrong(
        "by_lanes", "Right values, multiplied by lanes as in lesson 07.",
        (),
        ("wavefronts of shared memory", "the bar is 12,200", "not lanes"),
        "o_smem[i / 16 * O_LD + i % 16] +=",
        text="""\
for (int i = threadIdx.x % 32; i < 256; i += 32)
    for (int key = 0; key < KEYS; key++)
        o_smem[i / 16 * O_LD + i % 16] +=
            __half2float(p_smem[i / 16 * P_LD + key]) * __half2float(v_smem[key * LD + i % 16]);
""",
        cause="shared memory",
    ),
    Wrong(
        "adds_by_lane",
        "Adds the product to O element by element, with a layout of the accumulator that "
            "CUDA does not specify.",
        (),
        (),
        "wmma::fill_fragment(pv, 0.0f);",
        text="""\
const int lane = threadIdx.x % 32;
wmma::fragment<wmma::accumulator, 16, 16, 16, float> pv;
wmma::fill_fragment(pv, 0.0f);
#pragma unroll
for (int c = 0; c < KEYS; c += 16) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, element, wmma::row_major> p;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, element, wmma::row_major> v;
    wmma::load_matrix_sync(p, p_smem + c, P_LD);
    wmma::load_matrix_sync(v, v_smem + c * LD, LD);
    wmma::mma_sync(pv, p, v, pv);
}
for (int i = 0; i < pv.num_elements; i++)
    o_smem[(lane / 4 + 8 * (i / 2 % 2)) * O_LD + lane % 4 * 2 + i % 2 + 8 * (i / 4)] += pv.x[i];
""",
        cause="several places",
    ),
    Wrong(
        "loop_over_d",
        "Keeps the loop of Q K^T, up to D = 64, although the inner index is the key and there are 32.",
        (("c < KEYS", "c < D"),),
        (),
        "for (int c = 0; c < D; c += 16) {",
        text=OWN_BUILD,
        cause="loop bound",
    ),
    Wrong(
        "o_loaded_in_loop",
        "Loads O again in each step of the loop, which throws away the product of the step before.",
        (),
        (),
        "wmma::load_matrix_sync(o, o_smem, O_LD, wmma::mem_row_major);",
        text="""\
wmma::fragment<wmma::accumulator, 16, 16, 16, float> o;
for (int k = 0; k < KEYS; k += 16) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, element, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, element, wmma::row_major> b;
    wmma::load_matrix_sync(a, p_smem + k, P_LD);
    wmma::load_matrix_sync(b, v_smem + k * LD, LD);
    wmma::load_matrix_sync(o, o_smem, O_LD, wmma::mem_row_major);
    wmma::mma_sync(o, a, b, o);
}
wmma::store_matrix_sync(o_smem, o, O_LD, wmma::mem_row_major);
""",
        cause="order",
    ),
    Wrong(
        "one_lane_stores",
        "Lets one lane store the fragment, as if it held the whole matrix.",
        (("#pragma unroll\n", ""), (STORE_O, "if (threadIdx.x % 32 == 0) " + STORE_O)),
        (),
        "if (threadIdx.x % 32 == 0) wmma::store_matrix_sync(o_smem, o, O_LD, wmma::mem_row_major);",
        text=OWN_BUILD,
        cause="extra condition",
    ),
    Wrong(
        "p_with_row_of_q",
        "Loads P with the stride of Q, K and V (72) instead of its own (40).",
        (),
        (),
        "wmma::load_matrix_sync(weights, p_smem + i * 16, LD);",
        text="""\
wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
wmma::load_matrix_sync(sum, o_smem, O_LD, wmma::mem_row_major);
for (int i = 0; i < KEYS / 16; i++) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, element, wmma::row_major> weights;
    wmma::load_matrix_sync(weights, p_smem + i * 16, LD);
    wmma::fragment<wmma::matrix_b, 16, 16, 16, element, wmma::row_major> values;
    wmma::load_matrix_sync(values, v_smem + i * 16 * LD, LD);
    wmma::mma_sync(sum, weights, values, sum);
}
wmma::store_matrix_sync(o_smem, sum, O_LD, wmma::mem_row_major);
""",
        cause="reported: uninitialised read",
    ),
    Wrong(
        "zero_as_in_q_k",
        "Starts the sum at zero, as Q K^T does, and so throws away what o_smem holds of earlier tiles.",
        ((LOAD_O, "wmma::fill_fragment(o, 0.0f);"),),
        (),
        "wmma::fill_fragment(o, 0.0f);",
        text=OWN_BUILD,
        cause="statement",
    ),
    Wrong(
        "v_like_k",
        "Takes V as col_major like K, and so multiplies with the transposed tile.",
        (),
        (),
        "wmma::fragment<wmma::matrix_b, 16, 16, 16, element, wmma::col_major> v;",
        text="""\
wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
wmma::load_matrix_sync(acc, o_smem, O_LD, wmma::mem_row_major);
for (int key = 0; key < KEYS; key += 16) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, element, wmma::row_major> p;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, element, wmma::col_major> v;
    wmma::load_matrix_sync(p, p_smem + key, P_LD);
    wmma::load_matrix_sync(v, v_smem + key * LD, LD);
    wmma::mma_sync(acc, p, v, acc);
}
wmma::store_matrix_sync(o_smem, acc, O_LD, wmma::mem_row_major);
""",
        cause="template argument",
    ),
    Wrong(
        "v_steps_right",
        "Steps V by 16 columns instead of by 16 rows (16 keys), as K steps along its components.",
        (),
        (),
        "wmma::load_matrix_sync(v, v_smem + c, LD);",
        text="""\
wmma::fragment<wmma::accumulator, 16, 16, 16, float> o;
wmma::load_matrix_sync(o, o_smem, O_LD, wmma::mem_row_major);
wmma::fragment<wmma::matrix_a, 16, 16, 16, element, wmma::row_major> p;
wmma::fragment<wmma::matrix_b, 16, 16, 16, element, wmma::row_major> v;
#pragma unroll
for (int c = 0; c < KEYS; c += 16) {
    wmma::load_matrix_sync(p, p_smem + c, P_LD);
    wmma::load_matrix_sync(v, v_smem + c, LD);
    wmma::mma_sync(o, p, v, o);
}
wmma::store_matrix_sync(o_smem, o, O_LD, wmma::mem_row_major);
""",
        cause="argument",
    ),
)  # fmt: skip
