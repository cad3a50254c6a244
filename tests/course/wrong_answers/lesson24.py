"""Wrong answers to lesson 24: an operator, and an evaluator that cheats get past."""

from . import Wrong

COPY = "child, at = list(lines), int(rng.integers(len(lines) - 1))"
TWICE = "child.insert(at, lines[at])  # a line twice"
LESS = "del child[at]"
SWAP = "child[at], child[at + 1] = lines[at + 1], lines[at]"
CASES = "(1, 16, 32, False), (1, 16, 38, False), (2, 41, 38, True)"
DRAW = "x = draw(rng, heads, rows, keys, causal)"
POISON = "out = np.full_like(x.q, np.nan)"
LAUNCH = "reports = launch(candidate, x, out)"
READ = "        if reports:\n            return reports[0]\n"
COMPARE = "if not (np.abs(out - exact(x)) <= allowed(x)).all():  # a NaN is never <="
REFUSE = 'return f"off by more than allowed on {x.label}"'
LIVES = '    return ""\n'

WRONG = (
    Wrong(
        "reports_not_read", "Right numbers are what counts, so nothing else is looked at.",
        ((LAUNCH, "launch(candidate, x, out)"), (READ, "")),
        ('"race" lives', "reported: race"),
        "launch(candidate, x, out)",
        cause="report not read",
    ),
    Wrong(
        "memory_as_it_comes", "The kernel writes every element anyway.",
        ((POISON, "out = empty(x)"),),
        ('"answer left in memory" lives', "stores nothing", "NaN before the launch"),
        "out = empty(x)",
        cause="answer in memory",
    ),
    Wrong(
        "nan_passes", "An element is refused if its error is larger than allowed.",
        ((COMPARE, "if (np.abs(out - exact(x)) > allowed(x)).any():"),),
        ('"answer left in memory" lives', "elements of the output are NaN"),
        "if (np.abs(out - exact(x)) > allowed(x)).any():",
        cause="NaN accepted",
    ),
    Wrong(
        "one_head", "All heads are computed alike, so one will do.",
        ((CASES, CASES.replace("(2,", "(1,")),),
        ('"one head" lives', "more than one head", "H=1"),
        DRAW,
        cause="no input shows it",
    ),
    Wrong(
        "whole_blocks", "Rows come in multiples of a block.",
        ((CASES, CASES.replace("41", "48")),),
        ('"last rows skipped" lives', "no multiple of 16"),
        DRAW,
        cause="no input shows it",
    ),
    Wrong(
        "whole_tiles", "Keys come in multiples of a tile.",
        ((CASES, CASES.replace("16, 38", "16, 64").replace("41, 38", "41, 32")),),
        ('"last keys skipped" lives', "no multiple of 32"),
        DRAW,
        cause="no input shows it",
    ),
    Wrong(
        "no_mask", "The mask is a detail.",
        ((CASES, CASES.replace("True", "False")),),
        ('"mask ignored" lives', "causal mask"),
        DRAW,
        cause="no input shows it",
    ),
    Wrong(
        "as_many_rows_as_keys", "A row sees itself at least, so none is without a key.",
        ((CASES, CASES.replace("41, 38", "38, 38")),),
        ('"endless loop" lives', "more rows than keys"),
        DRAW,
        cause="no input shows it",
    ),
    Wrong(
        "first_input_only", "What is right on one input is right.",
        ((LIVES, "        " + LIVES.strip() + "\n" + LIVES),),
        ('"one head" lives', r"launched it on: B=1 H=1 S_q=16 S_k=32 D=64\."),
        DRAW,
        cause="no input shows it",
    ),
    Wrong(
        "own_seed", "A result must be repeatable, so inputs come from seed 0.",
        ((DRAW, DRAW.replace("rng", "np.random.default_rng(0)")),),
        ('"table of one evaluation" lives', "its seed is a secret"),
        "x = draw(np.random.default_rng(0), heads, rows, keys, causal)",
        cause="inputs known",
    ),
    Wrong(
        "round_tolerance", "Half precision has an error of some hundredths.",
        ((COMPARE, "if not (np.abs(out - exact(x)) <= 0.05).all():"),),
        ('"lower precision" lives', "times what `allowed` gives"),
        "if not (np.abs(out - exact(x)) <= 0.05).all():",
        cause="wrong output accepted",
    ),
    Wrong(
        "mean_error", "The error is small on average.",
        ((COMPARE, "if not np.abs(out - exact(x)).mean() <= 0.01:"),),
        ('"lower precision" lives', "Compare every element"),
        "if not np.abs(out - exact(x)).mean() <= 0.01:",
        cause="wrong output accepted",
    ),
    Wrong(
        "exactly_equal", "A right answer equals the exact one.",
        ((COMPARE, "if not (out == exact(x)).all():"),),
        ("Refused is stage 04 itself", "reported nothing", "nothing equals float64"),
        REFUSE,
        cause="right kernel refused",
    ),
    Wrong(
        "float32_tolerance", "Kernels compute in float32, so they are right to seven digits.",
        ((COMPARE, "if not (np.abs(out - exact(x)) <= 1e-6).all():"),),
        ("Refused is stage 04 itself", "reported nothing"),
        REFUSE,
        cause="right kernel refused",
    ),
    Wrong(
        "judged_by_its_text", "A kernel with all its barriers is right.",
        ((f"    for heads, rows, keys, causal in {CASES}:\n",
          '    if candidate.text.count("syncthreads()") >= 4:\n        return ""\n'
          f"    for heads, rows, keys, causal in {CASES}:\n"),),
        ("launches no candidate", "unseen"),
        'return ""',
        cause="never launched",
    ),
    Wrong(
        "many_seeds", "Five inputs of each shape are safer than one.",
        ((f"in {CASES}:", f"in 5 * ({CASES}):"),),
        ("takes 15 launches", "12 are allowed"),
        LAUNCH,
        cause="too many launches",
    ),
    Wrong(
        "true_for_right", "An evaluator says yes or no.",
        ((LIVES, "    return True\n"),),
        ("gives True", "a sentence is wanted"),
        "return True",
        cause="no sentence",
    ),
    Wrong(
        "parent_edited", "The list is there to be changed.",
        ((TWICE, "lines.insert(at, lines[at])\n        child = lines"),),
        ("own list has changed", "Edit a copy"),
        "lines.insert(at, lines[at])",
        cause="parent changed",
    ),
    Wrong(
        "another_generator", "Random is random, wherever it comes from.",
        (("edit = rng.integers(3)", "edit = np.random.default_rng().integers(3)"),),
        ("generators of one seed", "two different children"),
        "edit = np.random.default_rng().integers(3)",
        cause="seed not used",
    ),
    Wrong(
        "same_line", "The first line is as good as any.",
        (("int(rng.integers(len(lines) - 1))", "0"),),
        ("Of 32 children 3 differ", "Let `rng` choose"),
        "return child",
        cause="few edits",
    ),
    Wrong(
        "exchanged_with_itself", "Two lines are exchanged, and exchanged again.",
        ((SWAP, "child[at], child[at + 1] = lines[at], lines[at + 1]"),),
        ("has the lines of its parent",),
        "return child",
        cause="no edit",
    ),
    Wrong(
        "indentation_lost", "Spaces at the start of a line mean nothing.",
        (("list(lines)", "[line.strip() for line in lines]"),),
        ("Of 32 children 0 are Python", "indentation"),
        "return child",
        cause="does not apply",
    ),
    Wrong(
        "text_for_lines", "A kernel is a text.",
        (("    return child\n", '    return "\\n".join(child)\n'),),
        ("gives str", "a list of lines"),
        'return "\\n".join(child)',
        cause="no lines",
    ),
    Wrong(
        "only_comments", "An edit must not break anything.",
        ((TWICE, 'child.insert(at, f"        # {rng.random()}")'),
         (LESS, 'child.insert(at, f"    # {rng.random()}")'),
         (SWAP, 'child.insert(at, f"# {rng.random()}")')),
        ("20 live and 0 die", "take lines out"),
        "return child",
        cause="nothing dies",
    ),
    Wrong(
        "only_deletions", "What is not there costs nothing.",
        ((TWICE, LESS), (SWAP, LESS)),
        ("0 live and", "there twice"),
        "return child",
        cause="nothing lives",
    ),
)  # fmt: skip
