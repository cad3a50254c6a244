"""Wrong versions of the ring, as edits of its real modules, most of them mistakes that real libraries had."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from flashcore_numba.checks.mutation import SEED, Kill, Mutant
from flashcore_numba.stages import edited
from flashcore_numba.stages.edited import Edit, EditError

FOLDER = Path(__file__).parent
COPIED = ("sequence", "schedule", "rank", "clocks", "machine", "numerics", "programs", "checking")
ORDER, WRONG = ("order",), ("value", "property")
MISFIT = (*WRONG, "error")  # parts of other lengths may not fit at all


def kill_one(mutant: Mutant) -> Kill:
    """Put a mutant through the check of its way until something fails. Raises EditError."""
    start = time.perf_counter()
    fate = Kill(mutant.stage, mutant.name, mutant.mistake, "ranks", "survived", expected=mutant.expected)
    with edited.module("checking", _texts(mutant)) as checking:
        way = str(mutant.stage).partition("/")[2]
        report = checking.check([way], seed=SEED, stop_at_first=True)[0]
    fate = replace(fate, seconds=time.perf_counter() - start)
    if report.passed:
        return fate
    first = report.failures[0]
    return replace(fate, status="killed", kind=first.kind, case=first.name, message=first.message)


def _texts(mutant: Mutant) -> Mapping[str, str]:
    """The modules of the ring and the merge, edited: they import each other."""
    found = {name: (FOLDER / f"{name}.py").read_text() for name in COPIED}
    found["merging"] = (FOLDER.parent / "decode" / "merging.py").read_text()
    for edit in mutant.edits:
        assert edit.file is not None
        try:
            found[edit.file] = edited.applied(found[edit.file], [edit], edit.file)
        except EditError as error:
            raise EditError(f"{mutant.label}: {error}") from None
    return found


def _mutant(
    way: str, name: str, mistake: str, *edits: tuple[str, str], file: str = "programs",
    expected: tuple[str, ...] = WRONG,
) -> Mutant:  # fmt: skip
    return Mutant(f"ring/{way}", name, mistake, tuple(Edit(old, new, file) for old, new in edits), expected)


# Of the pulled keys, forward and backward.
NO_START_BARRIER = (
    '    rank.barrier(SIDE, "start")  # without it a copy may read keys that their owner has not written\n',
    "",
)
NOT_AWAITED = (
    "            rank.wait(MAIN, arrived)  # or the next step reads keys that are still on their way\n"
    "\n\n# What",
    "            pass\n\n\n# What",
)
PULL = (
    _mutant(
        "pull", "no_start_barrier", "Keys are copied which their owner has not written yet.",
        NO_START_BARRIER, expected=ORDER,
    ),
    _mutant(
        "pull", "no_end_barrier", "An owner writes its next keys while a peer still copies these.",
        ('    rank.barrier(SIDE, "end")  # without it an owner may write its next keys while a peer copies'
         " these\n", ""),
        expected=ORDER,
    ),
    _mutant(
        "pull", "barrier_not_awaited", "The end barrier is on the side stream, and the main one goes on.",
        ("    rank.wait(MAIN, rank.record(SIDE))  # our next keys are written on the main stream: after the"
         " barrier\n", ""),
        expected=ORDER,
    ),
    _mutant(
        "pull", "barrier_before_the_keys", "The barrier does not wait until our own keys are written.",
        ('    rank.wait(SIDE, rank.record(MAIN))\n    rank.barrier(SIDE, "start")',
         '    rank.barrier(SIDE, "start")'),
        expected=ORDER,
    ),
    _mutant(
        "pull", "buffer_reused_early", "A copy overwrites keys which the step before still reads.",
        ("                rank.wait(SIDE, left[i - 1])  # or the copy overwrites keys that step i - 1 still"
         " reads\n", "                pass\n"),
        expected=ORDER,
    ),
    _mutant(
        "pull", "one_buffer", "Both buffers are the same one.",
        ("dtype), _buffers(rank, of_chunk, dtype)\n", "dtype), [_buffers(rank, of_chunk, dtype)[0]] * 2\n"),
        expected=ORDER,
    ),
    _mutant(
        "pull", "arrival_not_awaited", "A step does not wait for its keys.",
        NOT_AWAITED, expected=ORDER,
    ),
    _mutant(
        "pull", "own_keys_again", "The chunk that came never reaches the computation.",
        ("held = mine if i == 0 else buffers[i % 2]", "held = mine"), expected=MISFIT,
    ),
    _mutant(
        "pull", "wrong_owner", "The keys are those of rank r - i, the mask that of rank r + i.",
        ("rank.of(step.owner,", "rank.of((rank.number - i) % rank.count,"), expected=MISFIT,
    ),
    _mutant(
        "pull", "buffers_of_own_length", "Buffers are as long as our own chunk: a longer one does not fit.",
        ("dtype), _buffers(rank, of_chunk, dtype)\n",
         "dtype), _buffers(rank, (shape[2], *of_chunk[1:]), dtype)\n"), expected=MISFIT,
    ),
    _mutant(
        "pull", "rows_never_rounded", "Rows that the last step does not see are never given out.",
        ("        if first:\n", "        if False:\n"),
    ),
    _mutant(
        "pull", "parts_in_float16", "What earlier steps found is rounded to float16.",
        ("merged(before[0], before[1], part, lse, module)",
         "merged(before[0].astype(np.float16), before[1], part, lse, module)"),
        file="numerics",
    ),
    _mutant(
        "pull", "kept_for_any_mask", "Views of chunks that were made for one mask are kept for the other.",
        ("rank.kept(_to_pull, layer.split, layer.causal,", "rank.kept(_to_pull, layer.split, True,"),
        expected=MISFIT,
    ),
    _mutant(
        "pull", "kept_for_any_shape", "What a rank keeps is found by the function that made it alone.",
        ("        if (make, how) not in self._kept:", "        how, wanted = how[:1], how\n"
         "        if (make, how) not in self._kept:"),
        ("            found = make(self, *how)  #", "            found = make(self, *wanted)  #"),
        file="machine", expected=MISFIT,
    ),
    _mutant(
        "pull", "lse_of_base_2", "The merge takes an LSE in units of log2 for a natural one.",
        ("merged(before[0], before[1], part, lse, module)",
         "merged(before[0], before[1], part, lse * np.float32(1.442695), module)"),
        file="numerics",
    ),
    _mutant(
        "pull", "parts_equally_heavy", "Parts are averaged, however much weight each has.",
        ("(module.exp(each - base)[..., None] for each in (lse_a, lse_b))",
         "(module.exp(each - each)[..., None] / 2 for each in (lse_a, lse_b))"),
        file="merging",
    ),
    _mutant(
        "pull", "lse_of_the_last_step", "The LSE is that of the step, not of all steps so far.",
        ("    lse = module.logaddexp(lse_a, lse_b)\n", "    lse = lse_b\n"), file="merging",
    ),
)  # fmt: skip

GATHER = (
    _mutant(
        "gather", "no_start_barrier", "Keys are copied which their owner has not written yet.",
        ('    rank.barrier(MAIN, "start")  # or a copy reads keys that their owner has not written\n', ""),
        expected=ORDER,
    ),
    _mutant(
        "gather", "copies_do_not_wait", "The barrier is on the main stream, and copies begin before it.",
        ("    rank.wait(SIDE, rank.record(MAIN))\n    rank.wait(ALSO, rank.record(MAIN))\n",
         "    rank.wait(ALSO, rank.record(MAIN))\n"),
        expected=ORDER,
    ),
    _mutant(
        "gather", "half_the_heads_do_not_wait", "The heads of the other stream are attended to at once.",
        ("        rank.wait(stream, rank.record(SIDE))", "        rank.wait(MAIN, rank.record(SIDE))"),
        expected=ORDER,
    ),
    _mutant(
        "gather", "arrival_not_awaited", "Heads are attended to while their keys are on their way.",
        ("        rank.wait(stream, rank.record(SIDE))  # or it reads keys that have not come\n", ""),
        expected=ORDER,
    ),
    _mutant(
        "gather", "other_stream_left_behind", "The call ends while the other stream still computes.",
        ("    rank.wait(MAIN, rank.record(ALSO))  # or the caller reads rows that are still computed\n", ""),
        expected=ORDER,
    ),
    _mutant(
        "gather", "no_end_barrier", "An owner writes its next keys while a peer still copies these.",
        ('    rank.barrier(SIDE, "end")  # or an owner writes its next keys while a peer copies these\n',
         ""),
        expected=ORDER,
    ),
    _mutant(
        "gather", "seen_by_the_first_piece", "Keys come as far as the first piece of the rows sees.",
        ("seen = split.bounds[pieces[1] + 1] if causal", "seen = split.bounds[pieces[0] + 1] if causal"),
        expected=MISFIT,
    ),
    _mutant(
        "gather", "heads_of_the_queries", "Groups of K/V heads are taken for as many query heads.",
        ("slice(heads.start * group, heads.stop * group)", "heads"), expected=MISFIT,
    ),
    _mutant(
        "gather", "halves_exchanged", "Our second piece is written to the place of the first.",
        ("zip(keys.places, (slice(0, half),", "zip(keys.places[::-1], (slice(0, half),"), expected=MISFIT,
    ),
    _mutant(
        "gather", "a_group_left_out", "Heads after the first group are forgotten.",
        ("[: 1 + (first < kv_heads)]", "[:1]"), expected=MISFIT,
    ),
)  # fmt: skip

GATED = (
    _mutant(
        "gated", "no_start_barrier", "Keys are copied which their owner has not written yet.",
        ('    rank.barrier(MAIN, "start")  # or copies read keys that their owner has not written\n'
         "    rank.wait(SIDE, rank.record(MAIN))  # and", "    rank.wait(SIDE, rank.record(MAIN))  # and"),
        expected=ORDER,
    ),
    _mutant(
        "gated", "copies_do_not_wait", "The barrier is on the main stream, and copies begin before it.",
        ("    rank.wait(SIDE, rank.record(MAIN))  # and copies begin when earlier kernels have left their"
         " places\n", ""),
        expected=ORDER,
    ),
    _mutant(
        "gated", "no_end_barrier", "An owner writes its next keys while a peer still copies these.",
        ('word=word)\n    rank.barrier(SIDE, "end")', "word=word)\n    pass"), expected=ORDER,
    ),
    _mutant(
        "gated", "end_not_awaited", "The end barrier is on the side stream, and the main one goes on.",
        ("    rank.wait(MAIN, rank.record(SIDE))  # or our next call writes them before that barrier\n", ""),
        expected=ORDER,
    ),
    _mutant(
        "gated", "signal_before_the_copy", "The number falls before the piece has come.",
        ("            rank.copy(SIDE, whole[:, :, heads, piece.place], source, i)\n", ""),
        ("            rank.signal(SIDE, word[heads], following, i)"
         "  # after the copy: a stream works in order\n",
         "            rank.signal(SIDE, word[heads], following, i)\n"
         "            rank.copy(SIDE, whole[:, :, heads, piece.place], source, i)\n"),
        expected=ORDER,
    ),
    _mutant(
        "gated", "signal_on_another_stream", "The number falls while the piece is on its way.",
        ("rank.signal(SIDE, word[heads], following, i)", "rank.signal(ALSO, word[heads], following, i)"),
        expected=ORDER,
    ),
    _mutant(
        "gated", "signal_of_the_next_piece", "The number says that the next piece has come, too.",
        ("coming[i].place.stop if i < len(coming)", "coming[i].place.start if i < len(coming)"),
        expected=ORDER,
    ),
    _mutant(
        "gated", "nothing_awaited", "The launch takes keys that are still on their way.",
        ("late=tuple(seen), word=word)", "late=tuple(seen), word=None)"), expected=ORDER,
    ),
    _mutant(
        "gated", "number_not_reset", "The second call begins with the number of the first, 0.",
        ("    rank.signal(MAIN, word, first, 0)\n", ""), expected=ORDER,
    ),
    _mutant(
        "gated", "reset_on_the_other_stream", "The number rises while a launch may look at it.",
        ("    rank.signal(MAIN, word, first, 0)\n", "    rank.signal(SIDE, word, first, 0)\n"),
        expected=ORDER,
    ),
    _mutant(
        "gated", "reset_to_nothing_awaited", "The number says at the beginning that all keys are there.",
        ("    rank.signal(MAIN, word, first, 0)\n", "    rank.signal(MAIN, word, 0, 0)\n"), expected=ORDER,
    ),
    _mutant(
        "gated", "last_piece_not_told", "Nobody says that the last piece has come.",
        ("            rank.signal(SIDE, word[heads], following, i)  #",
         "            if i < len(coming):\n                rank.signal(SIDE, word[heads], following, i)  #"),
        expected=("hang",),
    ),
    _mutant(
        "gated", "own_keys_not_counted", "The number stops above our own first piece.",
        ("following = coming[i].place.stop if i < len(coming) else 0", "following = piece.place.start"),
        expected=("hang",),
    ),
    _mutant(
        "gated", "heads_that_have_not_come", "The numbers of all heads fall with the first heads' keys.",
        ("rank.signal(SIDE, word[heads], following, i)", "rank.signal(SIDE, word, following, i)"),
        expected=ORDER,
    ),
    _mutant(
        "gated", "first_heads_left_out", "Keys come of the last heads alone.",
        ("range(kv_heads, 0, -together)", "range(kv_heads, 0, -together)[:1]"), expected=("hang",),
    ),
    _mutant(
        "gated", "wrong_owner", "Pieces are copied from the rank after their owner.",
        ("rank.of(piece.owner, \"all keys\")", "rank.of((piece.owner + 1) % rank.count, \"all keys\")"),
        expected=(*ORDER, *MISFIT),
    ),
    _mutant(
        "gated", "places_of_the_sequence", "Without a mask, keys are looked for in our order.",
        ("slice(split.length - split.rows(owner), split.length), slice(begin, end)",
         "slice(begin, end), slice(begin, end)"), file="schedule", expected=(*ORDER, *MISFIT),
    ),
    _mutant(
        "gated", "halves_exchanged", "Our second piece is written to the place of the first.",
        ("rows = (slice(half, None), slice(0, half)) if", "rows = (slice(0, half), slice(half, None)) if"),
        expected=MISFIT,
    ),
    _mutant(
        "gated", "first_piece_sees_as_much", "The rows of our first piece see the keys of the second.",
        ("ends = (own[1].place.stop, own[0].place.stop)", "ends = (own[0].place.stop, own[0].place.stop)"),
        expected=MISFIT,
    ),
)  # fmt: skip

SCHEDULE = (
    _mutant(
        "schedule", "halves_of_keys_exchanged", "All rows see an earlier chunk's second piece.",
        ("slice(0, split.half(owner)), False", "slice(split.half(owner), split.rows(owner)), False"),
        file="schedule",
    ),
    _mutant(
        "schedule", "halves_of_rows_exchanged", "Of a later chunk the first piece of the rows sees all.",
        ("slice(split.half(rank), split.rows(rank)), whole", "slice(0, split.half(rank)), whole"),
        file="schedule",
    ),
    _mutant(
        "schedule", "off_by_a_chunk", "The next rank's chunk counts as an earlier one.",
        ("elif owner > rank:", "elif owner > rank + 1:"), file="schedule",
    ),
    _mutant(
        "schedule", "full_with_balance", "Without a mask the halves of the causal schedule are taken.",
        ("        if not causal:\n", "        if False:\n"), file="schedule",
    ),
    _mutant(
        "schedule", "own_keys_without_mask", "The first step has no mask.",
        ("Step(rank, everything, everything, causal)", "Step(rank, everything, everything, False)"),
        file="schedule",
    ),
    _mutant(
        "schedule", "ragged_keys", "The first piece of a chunk is taken for half of it.",
        ("slice(0, split.half(owner)), False", "slice(0, split.rows(owner) // 2), False"), file="schedule",
    ),
    _mutant(
        "schedule", "ragged_rows", "The second piece of the rows is taken for half of them.",
        ("slice(split.half(rank), split.rows(rank)), whole",
         "slice(split.rows(rank) // 2, split.rows(rank)), whole"),
        file="schedule",
    ),
    _mutant(
        "schedule", "in_order", "Rank r holds the pieces 2r and 2r + 1, as without zigzag.",
        ("if self.zigzag else", "if False else"), file="sequence",
    ),
    _mutant(
        "schedule", "last_rank_left_out", "There is a step less than there are ranks.",
        ("range(1, split.ranks)", "range(1, split.ranks - 1)"), file="schedule",
    ),
)  # fmt: skip

RING = (
    _mutant(
        "ring", "own_keys_again", "The chunk that came never reaches the computation.",
        ("            held = coming\n    attention.finish()", "    attention.finish()"), expected=MISFIT,
    ),
    _mutant(
        "ring", "wrong_way_round", "Chunks go to the next rank; the schedule thinks, to the one before.",
        ("            rank.exchange(SIDE, held, before, coming, after, i + 1)\n            arrived = "
         "rank.record(SIDE)\n        attention",
         "            rank.exchange(SIDE, held, after, coming, before, i + 1)\n            arrived = "
         "rank.record(SIDE)\n        attention"),
        expected=MISFIT,
    ),
    _mutant(
        "ring", "own_keys_sent_again", "Each step sends our own chunk, not the one that came.",
        ("            before, after = _neighbours(rank)\n            rank.exchange(SIDE, held,",
         "            before, after = _neighbours(rank)\n            rank.exchange(SIDE, mine,"),
        expected=MISFIT,
    ),
    _mutant(
        "ring", "buffer_reused_early", "A chunk arrives where the step before still reads.",
        ("            if i > 1:\n                rank.wait(SIDE, left[i - 1])  # or what arrives",
         "            if i > 99:\n                rank.wait(SIDE, left[i - 1])  # or what arrives"),
        expected=ORDER,
    ),
    _mutant(
        "ring", "arrival_not_awaited", "A step does not wait for its keys.",
        ("            rank.wait(MAIN, arrived)\n            held = coming\n    attention",
         "            held = coming\n    attention"),
        expected=ORDER,
    ),
    _mutant(
        "ring", "all_send_first", "Every second rank sends to the wrong peer: the ring never closes.",
        ("return (rank.number - 1) % rank.count,",
         "return (rank.number - 1 - rank.number % 2) % rank.count,"),
        expected=("hang", *MISFIT),
    ),
)  # fmt: skip

ULYSSES = (
    _mutant(
        "ulysses", "heads_not_divisible", "A number of K/V heads that N does not divide is not refused.",
        ("    if k.shape[1] % rank.count:\n", "    if False:\n"), expected=MISFIT,
    ),
    _mutant(
        "ulysses", "zigzag_not_refused", "Rows in zigzag are taken for rows that follow each other.",
        ("    if layer.split.zigzag and rank.count > 1:\n", "    if False:\n"), expected=("property",),
    ),
    _mutant(
        "ulysses", "equal_parts", "All ranks are taken to hold as many rows as the first.",
        ("        rows = split.rows(rank)\n", "        rows = split.rows(0)\n"), expected=MISFIT,
    ),
    _mutant(
        "ulysses", "batch_and_heads_exchanged", "What comes is read as [B, share, ...], not [share, B, ...].",
        ("reshape(share, batch, rows, dim).swapaxes(0, 1)", "reshape(batch, share, rows, dim)"),
        expected=WRONG,
    ),
    _mutant(
        "ulysses", "lse_kept", "The LSE is not given back to the ranks of its rows.",
        ('    _to_rows(rank, layer, "LSE", wide_lse[..., None], lse[..., None])\n', ""),
    ),
)  # fmt: skip

BACKWARD = (
    _mutant(
        "backward", "weights_of_one_chunk", "P is made from the LSE of the chunk, not of all keys.",
        ("p = np.exp(_scores(q, k, causal, scale) - lse[..., None])",
         "p = _weights(q, k, causal, scale)[0]"), file="numerics",
    ),
    _mutant(
        "backward", "out_of_one_chunk", "D is made from the output of the chunk, not over all keys.",
        ("(dout * out).sum(axis=3, keepdims=True)", "(dout * (p @ v)).sum(axis=3, keepdims=True)"),
        file="numerics",
    ),
    _mutant(
        "backward", "sums_not_added", "What peers added to dK and dV is lost.",
        ("add(reads[0], reads[1], out=writes[0])", "add(reads[0], 0, out=writes[0])"),
    ),
    _mutant(
        "backward", "one_hop_short", "dK and dV are given out a step before they are home.",
        ("        if rank.count > 1:\n", "        if rank.count > 1 and i + 1 < len(plan):\n"),
        expected=MISFIT,
    ),
    _mutant(
        "backward", "own_keys_again", "The chunk that came never reaches the computation.",
        ("            held = coming\n    if brought", "    if brought"), expected=MISFIT,
    ),
    _mutant(
        "backward", "sums_not_awaited", "The part is added to sums that are still on their way.",
        ("            rank.wait(MAIN, brought)  # or the part is added to sums that are still on their way\n",
         "            pass\n"), expected=ORDER,
    ),
    _mutant(
        "backward", "sums_leave_early", "Sums are sent on before this step's part is in them.",
        ("        rank.wait(SIDE, taken)  # or sums leave without this step's part\n", ""), expected=ORDER,
    ),
    _mutant(
        "backward", "gradients_not_home", "dK and dV are given out before they have come home.",
        ("        rank.wait(MAIN, brought)  # or gradients are given out that have not come home\n",
         "        pass\n"), expected=ORDER,
    ),
    _mutant(
        "backward", "dq_of_the_last_step", "dQ is that of the last step: the sum so far is not added.",
        ("writes[0][...] = dq + np.float32(scale) * (ds @ k)",
         "writes[0][...] = np.float32(scale) * (ds @ k)"),
        file="numerics",
    ),
)  # fmt: skip

PULL_BACKWARD = (
    _mutant(
        "backward", "no_barrier_before_parts", "Parts are copied which another rank has not written yet.",
        ('        rank.barrier(SIDE, "parts")  # or peers copy it before it is written\n', ""),
        expected=ORDER,
    ),
    _mutant(
        "backward", "barrier_before_the_part", "The barrier does not wait until our own part is written.",
        ("        rank.wait(SIDE, written)  # or the barrier tells of a part that is not written yet\n", ""),
        expected=ORDER,
    ),
    _mutant(
        "backward", "event_before_the_kernel", "The barrier waits for what was queued before the kernel.",
        ("        gradients.step(i, keys, parts.made[i])\n        written = rank.record(MAIN)\n",
         "        written = rank.record(MAIN)\n        gradients.step(i, keys, parts.made[i])\n"),
        expected=ORDER,
    ),
    _mutant(
        "backward", "keys_come_early", "Keys come where those of the step before are still read.",
        ("                rank.wait(SIDE, left[i - 1])  # or the copy overwrites keys that step i - 1 still"
         " reads\n", "                pass\n"),
        expected=ORDER,
    ),
    _mutant(
        "backward", "slots_reused_early", "With two slots a part overwrites one that its owner still takes.",
        ("SLOTS = 3\n", "SLOTS = 2\n"), expected=ORDER,
    ),
    _mutant(
        "backward", "parts_collected_late", "Owners take a part two steps later: its slot is in use again.",
        ("        if i > 1:\n            collect(i - 1)  # while this step computes\n",
         "        if i > 2:\n            collect(i - 2)\n"),
        ("        collect(rank.count - 1)\n",
         "        for j in range(max(1, rank.count - 2), rank.count):\n            collect(j)\n"),
        expected=ORDER,
    ),
    _mutant(
        "backward", "room_for_a_part_reused", "A part comes where the one before it is still added.",
        ("            rank.wait(SIDE, added)  # or the copy overwrites a part that is still added\n",
         "            pass\n"),
        expected=ORDER,
    ),
    _mutant(
        "backward", "part_not_awaited", "A part is added while it is on its way.",
        ("        rank.wait(MAIN, rank.record(SIDE))  # or a part is added that is still on its way\n", ""),
        expected=ORDER,
    ),
    _mutant(
        "backward", "part_added_twice", "A part that came is added twice.",
        ('        rank.launch(MAIN, "adding gradients", _add, (came, sums), (sums,), j)\n',
         '        for _ in range(2):\n'
         '            rank.launch(MAIN, "adding gradients", _add, (came, sums), (sums,), j)\n'),
    ),
    _mutant(
        "backward", "first_part_left_out", "Nobody collects the parts of step 1 where more follow.",
        ("        if i > 1:\n            collect(", "        if i > 2:\n            collect("),
    ),
    _mutant(
        "backward", "last_part_left_out", "Nobody collects the parts of the last step.",
        ("        collect(rank.count - 1)\n", ""), expected=(*ORDER, *MISFIT),
    ),
    _mutant(
        "backward", "part_of_the_wrong_rank", "The owner takes what the rank after it has made for another.",
        ("giver = (rank.number - j) % rank.count", "giver = (rank.number + j) % rank.count"), expected=MISFIT,
    ),
    _mutant(
        "backward", "part_of_another_step", "The owner takes the part that is in the next slot.",
        ('rank.of(giver, "parts")[j % slots][keys]', 'rank.of(giver, "parts")[(j + 1) % slots][keys]'),
        expected=(*ORDER, *MISFIT),
    ),
    _mutant(
        "backward", "our_keys_at_our_step", "The keys of the part are those of our step, not of the giver's.",
        ("steps(split, giver, causal)[j].keys", "step.keys"), expected=MISFIT,
    ),
    _mutant(
        "backward", "gradients_exchanged", "The gradient of K in a part is added to that of V.",
        ("_add, (came, sums), (sums,), j)", "_add, (came[:, ::-1], sums), (sums,), j)"),
    ),
    _mutant(
        "backward", "parts_in_float16", "Parts are rounded to float16 on their way.",
        ("_add, (came, sums), (sums,), j)",
         "lambda r, w: _add((r[0].astype('float16'), r[1]), w), (came, sums), (sums,), j)"),
    ),
    _mutant(
        "backward", "parts_of_own_length", "Slots are as long as our own chunk: a longer one does not fit.",
        ("of_chunk, slots = _chunk_shape(split, shape),",
         "of_chunk, slots = (shape[2], *_chunk_shape(split, shape)[1:]),"),
        expected=MISFIT,
    ),
    _mutant(
        "backward", "pulled_keys_not_written", "Keys are copied which their owner has not written yet.",
        NO_START_BARRIER, expected=ORDER,
    ),
    _mutant(
        "backward", "pulled_keys_not_awaited", "A step does not wait for its keys.",
        NOT_AWAITED, expected=ORDER,
    ),
    _mutant(
        "backward", "lse_of_all_rows", "The rows of the second piece get the LSE of the first rows.",
        ("late = lse[:, :, layer.split.half(rank.number) :]",
         "late = lse[:, :, : q.shape[2] - layer.split.half(rank.number)]"),
    ),
)  # fmt: skip

ULYSSES_BACKWARD = (
    _mutant(
        "backward", "heads_not_zeroed", "dQ is added to what was in memory.",
        ('    rank.launch(MAIN, "zeroing", _zero, (), (made[0],), 0)\n', ""),
    ),
    _mutant(
        "backward", "heads_dk_for_dv", "The gradients of K and V go to each other's place.",
        ('zip(("dq", "dk", "dv"), made, (dq, dk, dv)', 'zip(("dq", "dk", "dv"), made, (dq, dv, dk)'),
    ),
    _mutant(
        "backward", "heads_dv_kept", "The gradient of V is not given back to the ranks of its rows.",
        ("        _to_rows(rank, layer, name, x, target)\n",
         '        if name != "dv":\n            _to_rows(rank, layer, name, x, target)\n'),
    ),
    _mutant(
        "backward", "heads_of_the_output", "The output is taken for its gradient.",
        ('wide_lse, wide["dout"], made[0])', 'wide_lse, wide["out"], made[0])'),
    ),
)  # fmt: skip

DECODE = (
    _mutant(
        "decode", "no_maximum", "The merge of two ranks without keys takes exp(-inf - -inf).",
        ("base = module.where(module.isneginf(lse), 0, lse)", "base = lse"), file="merging",
    ),
    _mutant(
        "decode", "causal_everywhere", "The causal mask hides keys of ranks before the last.",
        ("causal=layer.causal and last", "causal=layer.causal"),
    ),
    _mutant(
        "decode", "first_rank_lost", "The keys of the first rank are left out.",
        ("    out, lse = parts[0, ..., :-1], parts[0, ..., -1]\n    for part in parts[1:]:",
         "    out, lse = parts[1, ..., :-1], parts[1, ..., -1]\n    for part in parts[2:]:"),
        file="numerics",
    ),
    _mutant(
        "decode", "parts_in_float16", "Parts travel in float16.",
        ('    writes[0][..., :-1], writes[0][..., -1] = reads\n',
         '    writes[0][..., :-1], writes[0][..., -1] = (each.astype("float16") for each in reads)\n'),
    ),
    _mutant(
        "decode", "nothing_of_weight_1", "A rank without keys gives an LSE of 0.",
        ('writes[0][...], writes[1][...] = 0, float("-inf")', "writes[0][...], writes[1][...] = 0, 0"),
    ),
)  # fmt: skip

MUTANTS = (
    *SCHEDULE,
    *PULL,
    *GATHER,
    *GATED,
    *RING,
    *ULYSSES,
    *BACKWARD,
    *PULL_BACKWARD,
    *ULYSSES_BACKWARD,
    *DECODE,
)
