"""Every cause that a verdict may state, with its sentence. A verdict carries the key.

A cause is stated as certain only where the answer's source, a report or a comparison of values proves it.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from cuda_reference.cpu.report import KINDS
from flashcore_numba.course.judge import repair
from flashcore_numba.course.judge.verdict import CheckResult

# What an output equals: keys of `checks.mistakes`.
OUTPUTS = {
    "scale missing": "Your output is what attention without the scale gives.",
    "scale twice": "Your output is what attention gives when the scale is multiplied in twice.",
    "divided by the scale": "Your output is what attention gives when the scores are divided by the scale.",
    "scale squared root": "Your output is what attention gives with the square root of the scale.",
    "divided by D": "Your output is what attention gives when the scores are divided by D, not by sqrt(D).",
    "scale not as given": "Your output is what the scale 1 / sqrt(D) gives, whatever scale the caller gives.",
    "scale of D = 64": "Your output is what the scale 1 / 8 gives, which is right for D = 64 only.",
    "sign of the scores": "Your output is what attention gives with the scores' sign turned.",
    "mask ignored": "Your output is what attention without the mask gives: rows use keys that they must not "
    "see.",
    "mask top-left": "Your output is what a causal mask gives that is aligned at the first row and key. "
    "The right one is aligned at the last ones.",
    "mask hides the diagonal": "Your output is what a causal mask gives that hides the last key of each row "
    "that sees one.",
    "mask one key too many": "Your output is what a causal mask gives that shows each row one key too many.",
    "last visible key lost": "Your output is what attention gives without each row's last visible key.",
    "last key not in the sum": "Your output is what attention gives when the sum of the weights leaves out "
    "each row's last visible key.",
    "last key's value lost": "Your output is what attention gives when the weighted sum of V leaves out each "
    "row's last visible key, and the sum of the weights counts it.",
    "first key lost": "Your output is what attention gives without key 0.",
    "K for V": "Your output is what attention gives when K stands where V should.",
    "V for K": "Your output is what attention gives when V stands where K should.",
    "K and V swapped": "Your output is what attention gives when K and V have changed places.",
    "not normalised": "Your output is the weighted sum of V before its division by the sum of the weights.",
    "divided twice": "Your output is what a second division by the sum of the weights gives.",
    "divided by the number of keys": "Your output is the weighted sum of V divided by the number of keys, "
    "not by the sum of the weights.",
    "powers of 2": "Your output is what weights 2 ** (score - max) give. They should be powers of e.",
    "base 2 twice": "Your output is what scores give that are multiplied by log2(e), and then used as "
    "exponents of e.",
    "scores as weights": "Your output is what the scores themselves give as weights: the exponential is "
    "missing.",
    "half of the components": "Your output is what scores give that are made from the first half of the "
    "components of Q and K.",
    "always 64 components": "Your output is what scores give that are made from the first 64 components of Q "
    "and K, whatever D is.",
    "last component lost": "Your output is what scores give that leave out the last component of Q and K.",
    "K of head 0": "Your output is what attention gives when every head reads K of head 0.",
    "V of head 0": "Your output is what attention gives when every head reads V of head 0.",
    "K and V of head 0": "Your output is what attention gives when every head reads K and V of head 0.",
    "K of batch 0": "Your output is what attention gives when every batch reads K of batch 0.",
    "V of batch 0": "Your output is what attention gives when every batch reads V of batch 0.",
    "K and V of batch 0": "Your output is what attention gives when every batch reads K and V of batch 0.",
    "K/V heads in turn": "Your output is what attention gives when query head h reads K/V head h % H_kv. "
    "It is h // group.",
    "l not rescaled": "Your output is what the online softmax gives when the running sum is not rescaled to "
    "a new maximum.",
    "O not rescaled": "Your output is what the online softmax gives when O is not rescaled to a new maximum.",
    "nothing rescaled": "Your output is what the online softmax gives when neither the running sum nor O is "
    "rescaled to a new maximum.",
    "padding counted": "Your output is what attention gives when the places past the last key, up to the "
    "end of its tile, count as keys of score 0.",
    "first tile only": "Your output is what attention over the first tile of keys alone gives.",
    "first tile lost": "Your output is what attention without the first tile of keys gives.",
    "last tile lost": "Your output is what attention without the last tile of keys gives.",
    "last tile only": "Your output is what attention over the last tile of keys alone gives.",
    "partial tile lost": "Your output is what attention gives without the last tile where it is not full.",
}
# What the answer's source, a report of the simulator or of the CPU executor, or a counter proves.
PROVEN = {
    "never set": "Your answer never changes `{name}`.",
    "never stored": "Your answer never stores to `{name}`.",
    "stored under a condition": "Your answer stores to `{name}` only where {place}, `{source}`, lets it.",
    "leaves": "The function ends at {place}, `{source}`: what comes after it is not done.",
    "unordered": "Nothing orders two threads that touch the same element of `{name}`, one of them to write.",
    "blocks collide": "Two blocks touch the same element of `{name}`, one of them to write.",
    "barrier missed": "Not all threads of a block come to the same barrier.",
    "lanes missing": "Not all lanes of a warp that a warp instruction names take part in it.",
    "out of bounds": "An index of `{name}` is past an end.",
    "read before written": "An element of `{name}` is read before anything is stored in it.",
    "misaligned": "A wide access to `{name}` does not start at a multiple of its size.",
    "not a number": "Arithmetic on numbers makes a NaN.",
    "endless": "A loop does not end.",
    "refused": "",
    "not pinned": "Nothing pins `{name}` after {place}, `{source}`: the compiler of a GPU may use its "
    "registers before the wait.",
    "does not compile": "It does not compile.",
}
# The causes that a report of the simulator proves, by its kind.
REPORTED = {
    "race": "unordered",
    "race between blocks": "blocks collide",
    "divergent barrier": "barrier missed",
    "barrier after exit": "barrier missed",
    "warp mask": "lanes missing",
    "out of bounds": "out of bounds",
    "uninitialised read": "read before written",
    "misaligned": "misaligned",
    "not a number": "not a number",
    "endless loop": "endless",
}
# What the counter of a gate proves.
COUNTED = {
    "nothing under way": "It waits for the products before it sends what could travel under them.",
    "wide barrier": "All warps of the block wait for each other where only two have to meet.",
    "barriers": "It comes to more barriers than it needs.",
    "shuffles": "It shuffles more often than it needs to.",
    "exponentials": "It computes more exponentials than it needs.",
    "multiply-adds": "It multiplies more often than it needs to.",
    "float64": "It computes in float64.",
    "global loads": "It loads more from global memory than it needs to.",
    "global stores": "It stores to global memory more often than it needs to.",
    "shared loads": "It loads from shared memory more often than it needs to.",
    "shared memory": "It moves more through shared memory than it needs to.",
    "bank conflicts": "Lanes of a warp meet in the same banks of shared memory.",
}
# What the values of a variable equal: keys of the `slips` of exercises.
SLIPS = {
    "maximum of a lane": "`m` is what each lane gets from its own score alone.",
    "maximum of the tile": "`m` is the maximum of this tile alone: the earlier tiles are forgotten.",
    "sum of the warp": "Each lane adds the sum of all 32 weights to its share of `l`, not its own weight.",
    "factor upside down": "`l` is what the factor exp(new maximum - old maximum) gives. It is upside down.",
    "not rescaled": "`l` is the old share plus the new weight: the old share is not rescaled.",
    "weight rescaled too": "`l` is what comes out when the new weight is rescaled, too.",
    "weight with the old maximum": "The weight is exp(score - old maximum).",
    "weight without a maximum": "The weight is exp(score): no maximum is subtracted.",
    "score for weight": "The score stands where the weight should.",
    "weight divided": "The weight is divided by `l`.",
}
# What the calls of a search's two functions prove: what was launched, drawn and returned.
SEARCH = {
    "parent changed": "`mutate` changes the list that it is given.",
    "no lines": "`mutate` does not give a list of lines.",
    "no edit": "`mutate` gives its parent back.",
    "seed not used": "What `mutate` does is not decided by `rng` alone.",
    "few edits": "`mutate` gives the same children again and again.",
    "does not apply": "Most of what `mutate` gives is no Python.",
    "nothing lives": "No child of `mutate` is right: a search that begins with it ends with its parent.",
    "nothing dies": "No child of `mutate` is wrong: it changes nothing that matters.",
    "never launched": "`evaluate` judges a candidate that it has not run.",
    "no sentence": "`evaluate` does not give a text.",
    "right kernel refused": "`evaluate` refuses a right kernel.",
    "too many launches": "`evaluate` launches each candidate more often than it needs to.",
    "report not read": "A launch reported what is wrong, and `evaluate` lets the candidate live.",
    "wrong output accepted": "An output was too far off, and `evaluate` lets the candidate live.",
    "NaN accepted": "An output had elements that are NaN, and `evaluate` lets the candidate live.",
    "answer in memory": "The memory of the output held the right answer before the launch.",
    "inputs known": "Every evaluation draws the same inputs, so their answers can be known in advance.",
    "no input shows it": "None of the inputs shows what is wrong with the candidate.",
}
# What the functions of lesson 23 give, and what several ranks in one process do with them.
RANKS = {
    "no pieces": "`pieces` does not give the numbers of two pieces.",
    "pieces not shared out": "The pieces are not shared out: each of them belongs to one rank.",
    "work unequal": "Under a causal mask some ranks have more work than others.",
    "other pieces": "The pieces are equal work, and not those that the task names.",
    "no parts": "`seen` does not give two tuples of the numbers 0 and 1.",
    "keys of the future": "`seen` shows rows keys that come after them.",
    "keys lost": "`seen` hides keys that rows must see.",
    "start barrier": "A copy reads keys that their owner may not have written yet.",
    "end barrier": "An owner writes its next keys while a peer may still copy these.",
    "arrival": "A step uses keys that may still be on their way.",
    "reuse": "A copy overwrites keys that an earlier step may still read.",
    "no order": "Nothing orders two accesses to the same memory, one of them to write.",
    "stuck": "Ranks wait for what never comes.",
    "step missing": "Not every step is computed once.",
    "other keys": "A step sees other keys than those of its owner.",
    "too many barriers": "Ranks meet more often than they need to.",
    "copies not hidden": "Copies and attention take turns, where they could run side by side.",
}
# What the CPU executor reports: its own words say it, so there is no sentence.
REPORTS = dict.fromkeys((f"reported: {kind}" for kind in (*KINDS, "counter left over")), "")
# What an experiment proves: with this changed, and the rest as it is, the answer is right.
EXPERIMENTS = dict.fromkeys(repair.CAUSES, "{sentence}")
CAUSES = {**OUTPUTS, **PROVEN, **COUNTED, **SLIPS, **SEARCH, **RANKS, **REPORTS, **EXPERIMENTS}


def stated(
    result: CheckResult, cause: str, words: Mapping[str, str] = MappingProxyType({}), certain: bool = True
) -> CheckResult:
    """The result with a cause, a key of CAUSES, and its sentence. words: what the sentence leaves open."""
    return replace(result, cause=cause, certain=certain, why=CAUSES[cause].format(**words))
