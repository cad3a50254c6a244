"""Wrong answers to lesson 23: a split, a mask between chunks, and what several ranks wait for."""

from . import Wrong

PIECES = "return number, 2 * ranks - 1 - number  # one early, with few keys to see, and one late"
SEEN = "return ((1,), (0, 1)) if owner > number else ((0, 1), (0,))"
AFTER_MAIN = "    rank.wait(SIDE, rank.record(MAIN))\n"
START = (
    '    rank.barrier(SIDE, "start")  # without it a copy may read keys that their owner has not written\n'
)
END = (
    '    rank.barrier(SIDE, "end")  # without it an owner may write its next keys while a peer copies these\n'
)
FOR_END = "    rank.wait(MAIN, rank.record(SIDE))\n"
HELD = "held = rank.of(rank.number) if i == 0 else buffers[i % 2]"
COMING = "following, coming = plan[i + 1], buffers[(i + 1) % 2]"
REUSE = (
    "            if i > 1:\n"
    "                rank.wait(SIDE, left[i - 1])  "
    "# or the copy overwrites keys that step i - 1 still reads\n"
)
COPY = "rank.copy(SIDE, coming[following.keys], rank.of(following.owner)[following.keys])"
ARRIVED = "            arrived = rank.record(SIDE)\n"
STEP = "attention.step(i, held[step.keys])"
LEFT = "        left.append(rank.record(MAIN))\n"
AWAITED = (
    "        if i + 1 < len(plan):\n"
    "            rank.wait(MAIN, arrived)  # or the next step reads keys that are still on their way\n"
)

WRONG = (
    Wrong(
        "no_start_barrier", "Our keys are written, so the others' are.",
        ((START, ""),),
        ("may not have written yet", r"the copy reads keys of rank \d, and no barrier"),
        COPY,
        cause="start barrier",
    ),
    Wrong(
        "barrier_before_the_keys", "A barrier orders everything, so the streams need not know of each other.",
        ((AFTER_MAIN, ""),),
        ("may not have written yet", "What must a stream have waited for"),
        COPY,
        cause="start barrier",
    ),
    Wrong(
        "no_end_barrier", "When the last step is queued, everybody has what they need.",
        ((END, ""),),
        ("while a peer may still copy", "for its next call", "no barrier ends the call"),
        "rank.wait(MAIN, rank.record(SIDE))",
        cause="end barrier",
    ),
    Wrong(
        "end_not_awaited", "A barrier on one stream holds the other one too.",
        ((END + FOR_END, END),),
        ("for its next call", "on the main stream as soon as that is free"),
        END.strip(),
        cause="end barrier",
    ),
    Wrong(
        "arrival_not_awaited", "The copy was queued a step ago, so it has ended.",
        ((AWAITED, ""),),
        ("still be on their way", "nothing waits until the copy of step 1 has arrived"),
        STEP,
        cause="arrival",
    ),
    Wrong(
        "recorded_too_early", "An event is made first, and filled by what comes after it.",
        ((f"            {COPY}\n{ARRIVED}", f"{ARRIVED}            {COPY}\n"),),
        ("still be on their way", "Which event says that the copy has ended"),
        STEP,
        cause="arrival",
    ),
    Wrong(
        "buffer_reused_early", "Two buffers are enough, so they need no waiting.",
        ((REUSE, ""),),
        ("may still read", "writes buffer 1, while attention of step 1"),
        COPY,
        cause="reuse",
    ),
    Wrong(
        "one_buffer", "The keys of a step are used up when the next ones come.",
        ((HELD, HELD.replace("i % 2", "0")), (COMING, COMING.replace("(i + 1) % 2", "0"))),
        ("may still read", "writes buffer 0, while attention of step 1"),
        COPY,
        cause="reuse",
    ),
    Wrong(
        "copy_after_the_step", "First compute, then fetch what comes next.",
        ((f"        {STEP}\n{LEFT}", ""), (f"{HELD}\n", f"{HELD}\n        {STEP}\n{LEFT}"),
         (REUSE, "            rank.wait(SIDE, left[i])\n")),
        ("take turns", r"are done after [\d.]+; 16 would do"),
        COPY,
        cause="copies not hidden",
    ),
    Wrong(
        "copies_on_main", "One stream does everything in order, so nothing needs an event.",
        ((COPY, COPY.replace("SIDE", "MAIN")), (AFTER_MAIN + START, AFTER_MAIN + START + FOR_END),
         (END, AFTER_MAIN + END)),
        ("take turns", "16 would do"),
        COPY.replace("SIDE", "MAIN"),
        cause="copies not hidden",
    ),
    Wrong(
        "barrier_every_step", "Ranks go round together, so they meet at every step.",
        ((f"            {COPY}\n", f'            rank.barrier(SIDE, "step")\n            {COPY}\n'),),
        ("more often than they need to", "comes to 5 barriers in a call; 2 are enough"),
        'rank.barrier(SIDE, "step")',
        cause="too many barriers",
    ),
    Wrong(
        "barrier_of_its_own", "Each rank has a barrier, and comes to it when it is ready.",
        ((START, '    rank.barrier(SIDE, f"start {rank.number}")\n'),),
        ("what never comes", "the barrier at the start 0, for rank 1"),
        'rank.barrier(SIDE, f"start {rank.number}")',
        cause="stuck",
    ),
    Wrong(
        "own_keys_again", "`rank.of` gives the keys of the step.",
        ((HELD, "held = rank.of(rank.number)"),),
        ("other keys than those of its owner", "sees keys of rank 0 at step 1; those of rank 1 are due"),
        STEP,
        cause="other keys",
    ),
    Wrong(
        "wrong_owner", "A ring goes round the other way.",
        ((COPY, COPY.replace("following.owner", "(rank.number - i - 1) % rank.count")),),
        ("other keys than those of its owner", "those of rank"),
        COPY.replace("following.owner", "(rank.number - i - 1) % rank.count"),
        cause="other keys",
    ),
    Wrong(
        "last_step_left_out", "N ranks are N - 1 steps.",
        (("for i, step in enumerate(plan):", "for i, step in enumerate(plan[:-1]):"),),
        ("Not every step is computed once", "computes step 1 0 times"),
        STEP,
        cause="step missing",
    ),
    Wrong(
        "whole_buffer", "The kernel knows which rows of a buffer it needs.",
        ((STEP, "attention.step(i, held)"),),
        ("rows of keys are wanted", "the part of its owner's chunk that is seen"),
        "attention.step(i, held)",
    ),
    Wrong(
        "keys_where_they_are", "All memory can be read, so nothing has to be copied.",
        ((STEP, "attention.step(i, rank.of(step.owner)[step.keys])"),),
        ("in the memory of rank 1", "once per tile of rows"),
        "attention.step(i, rank.of(step.owner)[step.keys])",
    ),
    Wrong(
        "rows_in_order", "A rank holds neighbouring rows.",
        ((PIECES, "return 2 * number, 2 * number + 1"),),
        ("more work than others", "sees all pieces before it"),
        "return 2 * number, 2 * number + 1",
        cause="work unequal",
    ),
    Wrong(
        "every_nth", "Pieces are dealt out one after the other.",
        ((PIECES, "return number, number + ranks"),),
        ("more work than others", "Of 2 ranks, rank 1"),
        "return number, number + ranks",
        cause="work unequal",
    ),
    Wrong(
        "past_the_end", "2 N pieces are counted from 1.",
        ((PIECES, "return number, 2 * ranks - number"),),
        ("does not give the numbers of two pieces", r"pieces\(0, 1\)"),
        "return number, 2 * ranks - number",
        cause="no pieces",
    ),
    Wrong(
        "halves_exchanged", "The earlier piece of rows sees a later rank's keys.",
        ((SEEN, SEEN.replace("((1,), (0, 1))", "((0,), (0, 1))")),),
        ("keys that come after them", "must not see"),
        SEEN.replace("((1,), (0, 1))", "((0,), (0, 1))"),
        cause="keys of the future",
    ),
    Wrong(
        "owner_the_wrong_way_round", "An earlier rank's keys are the earlier ones.",
        ((SEEN, SEEN.replace("owner > number", "owner < number")),),
        ("`seen`", "Which piece comes first"),
        SEEN.replace("owner > number", "owner < number"),
        cause="keys of the future",
    ),
    Wrong(
        "earlier_ranks_only", "A causal mask hides the keys of later ranks.",
        ((SEEN, "return ((1,), (0,)) if owner > number else ((0, 1), (0,))"),),
        ("hides keys that rows must see", "must see keys of the other"),
        "return ((1,), (0,)) if owner > number else ((0, 1), (0,))",
        cause="keys lost",
    ),
)  # fmt: skip
