"""Wrong answers to lesson 06: tiles in registers."""

import textwrap

from . import Wrong

ZERO = """\
    for r in range(TM):
        for j in range(s_rmem.shape[1]):
            s_rmem[r, j] = 0
"""
PRODUCTS = """\
    for first in range(0, D, STEP):
        for c in range(first, first + STEP, 4):
            q0, q1 = load4(q_smem, (row, c)), load4(q_smem, (row + 1, c))
            for j in range(s_rmem.shape[1]):
                k = load4(k_smem, (col + COLS * j, c))
                s_rmem[0, j], s_rmem[1, j] = fma4(s_rmem[0, j], q0, k), fma4(s_rmem[1, j], q1, k)
"""
LOAD_Q = "            q0, q1 = load4(q_smem, (row, c)), load4(q_smem, (row + 1, c))\n"
KEYS = "            for j in range(s_rmem.shape[1]):\n"
MULTIPLY = "s_rmem[0, j], s_rmem[1, j] = fma4(s_rmem[0, j], q0, k), fma4(s_rmem[1, j], q1, k)"

WRONG = (
    Wrong(
        "not_set_to_zero", "The sums start with the scores of the tile before.",
        ((ZERO, ""),),
        ("uninitialised read", "local array was never written"),
        "s_rmem[0, j], s_rmem[1, j] = fma4(s_rmem[0, j], q0, k), fma4(s_rmem[1, j], q1, k)",
        cause="loop left out",
    ),
    Wrong(
        "zero_in_the_loop", "The sums are set to zero at every turn over the components.",
        ((ZERO, ""), (LOAD_Q, textwrap.indent(ZERO, " " * 8) + LOAD_Q)),
        (r"`s_rmem\[0, 0\]`", "first row and first key"),
        "for r in range(TM):",
        cause="several places",
    ),
    Wrong(
        "first_row_twice", "The second row is multiplied with the first row's components.",
        (("fma4(s_rmem[1, j], q1, k)", "fma4(s_rmem[1, j], q0, k)"),),
        (r"It holds what `s_rmem\[0, 0\]` should be",),
        "s_rmem[0, j], s_rmem[1, j] = fma4(s_rmem[0, j], q0, k), fma4(s_rmem[1, j], q0, k)",
        cause="argument",
    ),
    Wrong(
        "neighbouring_keys", "A thread takes 4 keys side by side, which others take for its own mask.",
        (("(col + COLS * j, c)", "(col * s_rmem.shape[1] + j, c)"),),
        (r"`s_rmem\[0, 0\]`", "column 1"),
        "k = load4(k_smem, (col * s_rmem.shape[1] + j, c))",
        cause="argument",
    ),
    Wrong(
        "keys_overlap", "The keys of neighbouring threads overlap: `j` without COLS.",
        (("(col + COLS * j, c)", "(col + j, c)"),),
        (r"`s_rmem\[0, 1\]`", "COLS keys further", r"`s_rmem\[0, 0\]` and `s_rmem\[1, 0\]` are right"),
        "k = load4(k_smem, (col + j, c))",
        cause="argument",
    ),
    Wrong(
        "half_of_the_components", "Steps of 8, and only the first 4 of them multiplied.",
        (("range(first, first + STEP, 4)", "range(first, first + 4, 4)"),),
        (r"`s_rmem\[0, 0\]`", "expected"),
        "for c in range(first, first + 4, 4):",
        cause="loop bound",
    ),
    Wrong(
        "always_64_components", "The loop runs over 64 components, whatever D is.",
        (("range(0, D, STEP)", "range(0, 64, STEP)"),),
        ("Wrong: D = 128", r"`s_rmem\[0, 0\]`"),
        "for first in range(0, 64, STEP):",
        cause="always 64 components",
    ),
    Wrong(
        "two_keys_only", "The loop over keys runs over the rows.",
        ((f"{KEYS}                k", f"{KEYS.replace('s_rmem.shape[1]', 'TM')}                k"),),
        (r"`s_rmem\[1, 3\]`", "fourth key", "It is 0 in every lane"),
        "for j in range(TM):",
        cause="loop bound",
    ),
    Wrong(
        "q_of_the_step", "Q is read at the start of the step, K at the component.",
        ((LOAD_Q, LOAD_Q.replace("(row, c)", "(row, first)").replace("(row + 1, c)", "(row + 1, first)")),),
        (r"`s_rmem\[0, 0\]`", "expected"),
        "q0, q1 = load4(q_smem, (row, first)), load4(q_smem, (row + 1, first))",
        cause="argument",
    ),
    Wrong(
        "not_summed", "Each turn's four products replace the sum.",
        (("fma4(s_rmem[0, j], q0, k), fma4(s_rmem[1, j], q1, k)", "fma4(0.0, q0, k), fma4(0.0, q1, k)"),),
        (r"`s_rmem\[0, 0\]`", "expected"),
        "s_rmem[0, j], s_rmem[1, j] = fma4(0.0, q0, k), fma4(0.0, q1, k)",
        cause="argument",
    ),
    Wrong(
        "one_score_at_a_time", "Right values, and every operand is loaded again for every score.",
        ((PRODUCTS, (
            "    for r in range(TM):\n"
            "        for j in range(s_rmem.shape[1]):\n"
            "            for c in range(0, D, 4):\n"
            "                q, k = load4(q_smem, (row + r, c)), load4(k_smem, (col + COLS * j, c))\n"
            "                s_rmem[r, j] = fma4(s_rmem[r, j], q, k)\n"
        )),),
        ("load requests", "22,528", "the bar is", "its index does not depend"),
        line="for r in range(TM):",
        cause="several places",
    ),
    Wrong(
        "q_loaded_for_every_key", "Right values, and Q is loaded inside the loop over keys.",
        ((LOAD_Q + KEYS, KEYS + textwrap.indent(LOAD_Q, " " * 4)),),
        ("load requests", "18,432", "the bar is", "its index does not depend"),
        line="q0, q1 = load4(q_smem, (row, c)), load4(q_smem, (row + 1, c))",
        cause="several places",
    ),
    Wrong(
        "rows_swapped",
        "The two rows' sums change places.",
        (),
        (r"`s_rmem\[0, 0\]`", r"It holds what `s_rmem\[1, 0\]` should be",),
        "s_rmem[1, j], s_rmem[0, j] = fma4(s_rmem[1, j], q0, k), fma4(s_rmem[0, j], q1, k)",
        text="""\
for r in range(TM):
    for j in range(s_rmem.shape[1]):
        s_rmem[r, j] = 0
for c in range(0, D, 4):
    q0, q1 = load4(q_smem, (row, c)), load4(q_smem, (row + 1, c))
    for j in range(s_rmem.shape[1]):
        k = load4(k_smem, (col + COLS * j, c))
        s_rmem[1, j], s_rmem[0, j] = fma4(s_rmem[1, j], q0, k), fma4(s_rmem[0, j], q1, k)
""",
    ),
    Wrong(
        "padding_multiplied",
        "The loop runs into the padding after each row.",
        (),
        ("uninitialised read", "q_smem element 64",),
        "for c in range(0, D + 4, 4):",
        text="""\
for r in range(TM):
    for j in range(s_rmem.shape[1]):
        s_rmem[r, j] = 0
for c in range(0, D + 4, 4):
    q0, q1 = load4(q_smem, (row, c)), load4(q_smem, (row + 1, c))
    for j in range(s_rmem.shape[1]):
        k = load4(k_smem, (col + COLS * j, c))
        s_rmem[0, j], s_rmem[1, j] = fma4(s_rmem[0, j], q0, k), fma4(s_rmem[1, j], q1, k)
""",
        cause="loop bound",
    ),
    Wrong(
        "barrier_in_the_loop",
        "Right values, and a barrier at every step.",
        (),
        ("barriers, counted once a warp", "nothing to wait for",),
        "cuda.syncthreads()",
        text="""\
for r in range(TM):
    for j in range(s_rmem.shape[1]):
        s_rmem[r, j] = 0
for c in range(0, D, 4):
    q0, q1 = load4(q_smem, (row, c)), load4(q_smem, (row + 1, c))
    for j in range(s_rmem.shape[1]):
        k = load4(k_smem, (col + COLS * j, c))
        s_rmem[0, j], s_rmem[1, j] = fma4(s_rmem[0, j], q0, k), fma4(s_rmem[1, j], q1, k)
    cuda.syncthreads()
""",
        cause="extra barrier",
    ),
    Wrong(
        "float32_unknown",
        "A local array in a file that does not import float32.",
        (),
        ("`float32` is not defined", "does not import it",),
        "buf = cuda.local.array(4, float32)",
        text="""\
for r in range(TM):
    for j in range(s_rmem.shape[1]):
        s_rmem[r, j] = 0
buf = cuda.local.array(4, float32)
for c in range(0, D, 4):
    q0, q1 = load4(q_smem, (row, c)), load4(q_smem, (row + 1, c))
    for j in range(s_rmem.shape[1]):
        buf[0], buf[1], buf[2], buf[3] = load4(k_smem, (col + COLS * j, c))
        s_rmem[0, j], s_rmem[1, j] = fma4(s_rmem[0, j], q0, buf), fma4(s_rmem[1, j], q1, buf)
""",
    ),
)  # fmt: skip
