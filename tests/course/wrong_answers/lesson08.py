"""Wrong answers to lesson 08: the product of P and V on the tensor core."""

from . import Wrong

LOAD_O = "wmma::load_matrix_sync(o, o_smem, O_LD, wmma::mem_row_major);"
LOAD_P = "wmma::load_matrix_sync(p, p_smem + key, P_LD);"
LOAD_V = "wmma::load_matrix_sync(v, v_smem + key * LD, LD);"
MULTIPLY = "wmma::mma_sync(o, p, v, o);"
STORE_O = "wmma::store_matrix_sync(o_smem, o, O_LD, wmma::mem_row_major);"

WRONG = (
    Wrong(
        "starts_at_zero", "The accumulator starts at 0 as in multiply_qk: every tile but the last is lost.",
        ((LOAD_O, "wmma::fill_fragment(o, 0.0f);"),),
        (r"`o_smem\[", "the second time it comes there", "Before that everything was right there"),
        STORE_O,
    ),
    Wrong(
        "never_loaded", "The accumulator is declared and multiplied, but holds nothing.",
        ((LOAD_O, ""),),
        ("uninitialised read", "last argument of mma_sync, was never loaded or filled"),
        MULTIPLY,
    ),
    Wrong(
        "v_by_columns", "V is taken for its transpose, as K was.",
        (("wmma::row_major> v;", "wmma::col_major> v;"),),
        (r"`o_smem\[", "the first time it comes there"),
        STORE_O,
    ),
    Wrong(
        "v_along_its_rows", "16 keys further is taken to be 16 columns further, in V too.",
        (("v_smem + key * LD", "v_smem + key"),),
        ("uninitialised read", "`v_smem` at row 0, column 64", "down the rows of V"),
        LOAD_V.replace("key * LD", "key"),
    ),
    Wrong(
        "stride_of_v_for_p", "Rows of P are taken to be as far apart as rows of V.",
        (("p_smem + key, P_LD", "p_smem + key, LD"),),
        ("uninitialised read", "`p_smem` at row", "rows are 40 halves apart"),
        LOAD_P.replace("P_LD", "LD"),
    ),
    Wrong(
        "half_of_the_keys", "One product of 16 keys; a tile has 32.",
        (("key < KEYS", "key < 16"),),
        (r"`o_smem\[", "the first time it comes there"),
        STORE_O,
    ),
    Wrong(
        "not_stored", "The sum stays in the fragment.",
        (("\n" + "    " + STORE_O, ""),),
        (r"`o_smem\[", "is 0, expected", "It is 0 in every lane"),
        "",
    ),
    Wrong(
        "operands_swapped", "V P instead of P V.",
        (("mma_sync(o, p, v, o)", "mma_sync(o, v, p, o)"),),
        ("does not compile", "a must be a fragment of matrix_a"),
        MULTIPLY.replace("p, v", "v, p"),
    ),
    Wrong(
        "only_lane_0", "The multiplication is left to one lane.",
        ((MULTIPLY, "if (threadIdx.x % 32 == 0) " + MULTIPLY),),
        ("warp mask", "belongs to the whole warp"),
        "if (threadIdx.x % 32 == 0) " + MULTIPLY,
    ),
    Wrong(
        "trip_for_each_product", "Right values, and O makes its trip through shared memory for each product.",
        (),
        ("wavefronts of shared memory", "13,696", "the bar is 12,200", "once a tile"),
        "",
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
    ),
    Wrong(
        "layout_missing", "An accumulator is loaded without saying how it lies in memory.",
        ((LOAD_O, LOAD_O.replace(", wmma::mem_row_major", "")),),
        ("does not compile", "also takes its layout"),
        LOAD_O.replace(", wmma::mem_row_major", ""),
    ),
    Wrong(
        "pointers_multiplied", "The matrices themselves are handed to mma_sync.",
        (),
        ("does not compile", "multiplies fragments", "load them from the pointers"),
        "wmma::mma_sync(o_smem, p_smem, v_smem, o_smem);",
        text="wmma::mma_sync(o_smem, p_smem, v_smem, o_smem);\n",
    ),
    Wrong(
        "operand_without_layout", "The type of P does not say how it lies in memory.",
        ((", element, wmma::row_major> p;", ", element> p;"),),
        ("does not compile", "ends with wmma::row_major or col_major"),
        LOAD_P,
    ),
    Wrong(
        "by_lanes", "Right values, multiplied by lanes as in lesson 07.",
        (),
        ("wavefronts of shared memory", "the bar is 12,200", "not lanes"),
        "",
        text="""\
for (int i = threadIdx.x % 32; i < 256; i += 32)
    for (int key = 0; key < KEYS; key++)
        o_smem[i / 16 * O_LD + i % 16] +=
            __half2float(p_smem[i / 16 * P_LD + key]) * __half2float(v_smem[key * LD + i % 16]);
""",
    ),
)  # fmt: skip
