"""Wrong answers to lesson 13: the merge of partial softmaxes."""

from . import Wrong

MAXIMUM = "for (int i = 0; i < count; i++) m = fmaxf(m, m_of(i));"
LOADS = "        const float4 lower = *(const float4*)o_of(i, 0), upper = *(const float4*)o_of(i, 1);\n"
UPPER = "upper = *(const float4*)o_of(i, 1)"

WRONG = (
    Wrong(
        "sum_not_weighted", "l is added up without the factors.",
        (("l += weight * l_of(i)", "l += l_of(i)"),),
        (r"`l` \(the sum of powers", r"`m` is right there"),
        "l += l_of(i);",
        cause="value",
    ),
    Wrong(
        "output_not_weighted", "O is added up without the factors.",
        (("o[j] += weight * x[j]", "o[j] += x[j]"),),
        (r"`o\[0\]`",),
        line="for (int j = 0; j < 8; j++) o[j] += x[j];",
        cause="value",
    ),
    Wrong(
        "factor_upside_down", "The factor is 2^(m - m_of(i)).",
        (("ptx::ex2(m_of(i) - m)", "ptx::ex2(m - m_of(i))"),),
        (r"`l` \(the sum of powers", r"It is NaN"),
        "const float weight = ptx::ex2(m - m_of(i));",
        cause="argument",
    ),
    Wrong(
        "last_reference", "The loop keeps the last part's m, not the greatest.",
        ((MAXIMUM, "for (int i = 0; i < count; i++) m = m_of(i);"),),
        (r"`m` \(the greatest",),
        line="for (int i = 0; i < count; i++) m = m_of(i);",
        cause="value",
    ),
    Wrong(
        "upper_half_twice", "The lower four components are loaded twice.",
        ((UPPER, "upper = *(const float4*)o_of(i, 0)"),),
        (r"`o\[7\]`",),
        line="const float4 lower = *(const float4*)o_of(i, 0), upper = *(const float4*)o_of(i, 0);",
        cause="argument",
    ),
    Wrong(
        "no_keys_no_guard", "A row that has seen no key is 0 / 0.",
        (("l == 0 ? 0.0f : 1.0f / l", "1.0f / l"),),
        (r"`o\[0\]`", r"It is NaN: 0 / 0", r"`m` and `l` are right there"),
        line="const float inv_l = 1.0f / l;  // a row that sees no key is 0, not 0 / 0",
        cause="value",
    ),
    Wrong(
        "minus_infinity", "m starts at -INFINITY: -inf - -inf where no part has seen a key.",
        (("float m = LOWEST", "float m = -INFINITY"),),
        (r"70 rows, 33 keys", r"`m` \(the greatest m of the parts\) is -inf", r"NaN"),
        line="float m = -INFINITY, l = 0.0f;",
        cause="value",
    ),
    Wrong(
        "one_float_at_a_time", "Eight loads of four bytes where two of sixteen would do.",
        (
            (LOADS, ""),
            ("const float x[8] = {lower.x, lower.y, lower.z, lower.w, upper.x, upper.y, upper.z, upper.w};",
             "const float x[8] = {o_of(i, 0)[0], o_of(i, 0)[1], o_of(i, 0)[2], o_of(i, 0)[3], "
             "o_of(i, 1)[0], o_of(i, 1)[1], o_of(i, 1)[2], o_of(i, 1)[3]};"),
        ),
        (r"requests of loads",),
        line="const float x[8] = {o_of(i, 0)[0], o_of(i, 0)[1], o_of(i, 0)[2], o_of(i, 0)[3], o_of(i, "
        "1)[0], o_of(i, 1)[1], o_of(i, 1)[2], o_of(i, 1)[3]};",
    ),
    Wrong(
        "sum_never_set", "A declared sum is taken to be 0.",
        (("float m = LOWEST, l = 0.0f;", "float m = LOWEST, l;"),),
        ("uninitialised read", "`l`",),
        "float m = LOWEST, l;", cause="statement",
    ),
)  # fmt: skip
