"""Wrong answers to lesson 07: the scalar product with V, in CUDA C."""

from . import Wrong

LOAD_P = "const float4 four = *reinterpret_cast<const float4*>(p_row + key);"
COPY_P = "const float p[4] = {four.x, four.y, four.z, four.w};"
LOAD_V = "tile::load8(v, v_smem + (key + i) * LD);"
MULTIPLY = "for (int c = 0; c < 8; c++) o[c] += p[i] * v[c];"

WRONG = (
    Wrong(
        "not_summed", "Each key replaces what the keys before it gave.",
        (("o[c] += p[i] * v[c]", "o[c] = p[i] * v[c]"),),
        (r"`o\[0\]` \(the first of the lane", "the sign `=`"),
        MULTIPLY.replace("+=", "="),
        cause="operator",
    ),
    Wrong(
        "first_weight_for_all", "All four keys get the weight of the first.",
        (("p[i] * v[c]", "p[0] * v[c]"),),
        (r"`o\[0\]` \(the first of the lane", "first time it comes there"),
        MULTIPLY.replace("p[i]", "p[0]"),
        cause="index",
    ),
    Wrong(
        "one_key_four_times", "The row of V does not move with i.",
        (("(key + i) * LD", "key * LD"),),
        (r"`o\[0\]` \(the first of the lane", "first time it comes there"),
        "tile::load8(v, v_smem + key * LD);",
        cause="argument",
    ),
    Wrong(
        "padding_forgotten", "Rows of V are taken to be 64 halves apart.",
        (("(key + i) * LD", "(key + i) * 64"),),
        ("uninitialised read", "rows are 72 halves apart", "8 of padding that nobody writes"),
        LOAD_V.replace("LD", "64"),
        cause="argument",
    ),
    Wrong(
        "half_of_the_components", "Four components instead of eight.",
        (("c < 8", "c < 4"),),
        (r"`o\[7\]`", r"`o\[0\]` and `o\[1\]` are right there", "It is 0 in every lane"),
        MULTIPLY.replace("c < 8", "c < 4"),
        cause="loop bound",
    ),
    Wrong(
        "weights_not_loaded_yet", "The weights' address forgets the key.",
        (("(p_row + key)", "(p_row)"),),
        (r"`o\[0\]`", "the second time it comes there", "Before that, "),
        "const float4 four = *reinterpret_cast<const float4*>(p_row);",
        cause="argument",
    ),
    Wrong(
        "crooked_address", "The 4 weights are loaded again for each key, from a crooked address.",
        (),
        ("misaligned", "multiple of 16", r"p_row \+ key \+ 1 is not"),
        LOAD_P.replace("+ key", "+ key + i"),
        text="""\
for (int i = 0; i < 4; i++) {
    const float4 four = *reinterpret_cast<const float4*>(p_row + key + i);
    float v[8];
    tile::load8(v, v_smem + (key + i) * LD);
    for (int c = 0; c < 8; c++) o[c] += four.x * v[c];
}
""",
        cause="reported: misaligned",
    ),
    Wrong(
        "one_number_at_a_time", "Right values, with loads of single numbers.",
        (),
        ("load requests", "66,176", "the bar is 6,000", "five loads"),
        "for (int c = 0; c < 8; c++) o[c] += p_row[key + i] * __half2float(v_smem[(key + i) * LD + c]);",
        text="""\
for (int i = 0; i < 4; i++)
    for (int c = 0; c < 8; c++) o[c] += p_row[key + i] * __half2float(v_smem[(key + i) * LD + c]);
""",
        cause="shared loads",
    ),
    Wrong(
        "python_loop", "A loop as Python has it.",
        (("for (int i = 0; i < 4; i++) {", "for i in range(4) {"),),
        ("`in` is Python", "In C"),
        "for i in range(4) {",
        cause="refused",
    ),
    Wrong(
        "no_semicolon", "A statement without its end.",
        ((COPY_P, COPY_P[:-1]),),
        ("does not compile", "`;` is missing"),
        COPY_P[:-1],
        cause="does not compile",
    ),
    Wrong(
        "pointer_as_value", "The pointer itself in the place of what it points to.",
        (("*reinterpret_cast<const float4*>(p_row + key)", "p_row + key"),),
        ("does not compile", r"`const float\*` is given where", r"`\*reinterpret_cast<const float4\*>\(poi"),
        "const float4 four = p_row + key;",
        cause="does not compile",
    ),
    Wrong(
        "v_never_loaded", "The array is declared, and taken to hold the row.",
        (("            tile::load8(v, v_smem + (key + i) * LD);\n", ""),),
        ("uninitialised read", "`v`",), "float v[8];", cause="call left out",
    ),
)  # fmt: skip
