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
    ),
    Wrong(
        "output_not_weighted", "O is added up without the factors.",
        (("o[j] += weight * x[j]", "o[j] += x[j]"),),
        (r"`o\[0\]`",),
    ),
    Wrong(
        "factor_upside_down", "The factor is 2^(m - m_of(i)).",
        (("ptx::ex2(m_of(i) - m)", "ptx::ex2(m - m_of(i))"),),
        (r"`l` \(the sum of powers", r"It is NaN"),
        "l += weight * l_of(i);",
    ),
    Wrong(
        "last_reference", "The loop keeps the last part's m, not the greatest.",
        ((MAXIMUM, "for (int i = 0; i < count; i++) m = m_of(i);"),),
        (r"`m` \(the greatest",),
    ),
    Wrong(
        "upper_half_twice", "The lower four components are loaded twice.",
        ((UPPER, "upper = *(const float4*)o_of(i, 0)"),),
        (r"`o\[7\]`",),
    ),
    Wrong(
        "no_keys_no_guard", "A row that has seen no key is 0 / 0.",
        (("inverse_sum(l)", "1.0f / l"),),
        (r"`o\[0\]`", r"It is NaN: 0 / 0", r"`m` and `l` are right there"),
    ),
    Wrong(
        "minus_infinity", "m starts at -INFINITY: -inf - -inf where no part has seen a key.",
        (("float m = LOWEST", "float m = -INFINITY"),),
        (r"70 rows, 33 keys", r"`m` \(the greatest m of the parts\) is -inf", r"NaN"),
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
    ),
)  # fmt: skip
