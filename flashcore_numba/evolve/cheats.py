"""Cheats: candidates that look right or fast without being it, each with the layer that must refuse it.

They stand for hacks that published searches for kernels have met: see docs/search.md for the sources.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from flashcore_numba.checks import runner
from flashcore_numba.checks.forward import operation
from flashcore_numba.course import exercise
from flashcore_numba.course.judge.grading import FIRST as FIRST_INPUT
from flashcore_numba.course.judge.layers import CHECKS, COMPILE, CUBIN, FIRST, GATES, SCREEN
from flashcore_numba.course.lessons import find
from flashcore_numba.course.spec import Key
from flashcore_numba.evolve import source
from flashcore_numba.evolve.evaluate import FLOOR
from flashcore_numba.evolve.floor import Timed
from flashcore_numba.predict.limits import Device
from flashcore_numba.stages import edited
from flashcore_numba.stages.edited import Edit


@dataclass(frozen=True)
class Cheat:
    """hack: what it does, a sentence. edits: (old, new) pairs of the lesson's own file, where each `old` is
    once. layer: what must refuse it. region: lines in place of the region, before the edits. timed: a made-up
    time.
    """

    name: str
    hack: str
    lesson: Key
    layer: str
    edits: tuple[tuple[str, str], ...] = ()
    region: str | None = None
    timed: Timed | None = None

    @property
    def file(self) -> tuple[str, str]:
        """Name and text of the candidate."""
        lesson = find(str(self.lesson))
        own = exercise.region(lesson.exercise).text
        name, text = source.whole(lesson, own if self.region is None else self.region)
        return name, edited.applied(text, [Edit(old, new) for old, new in self.edits], name)


V_WAIT = "        ptx::mbarrier_wait(v_full + slot, parity);  // V has arrived\n"
K_WAIT = "        ptx::mbarrier_wait(k_full + slot, parity);  // K has arrived\n"
PARITY = "parity = tile / STAGES % 2"
P_TO_SMEM = "            p_smem[warp, lane] = p\n"
MAXIMUM = "            m_new = max(m, warp_max(score))\n"
P_OF_12 = "const float p0 = ptx::ex2(s[0] * scale_log2 - m[r]), p1 = ptx::ex2(s[1] * scale_log2 - m[r]);"
SLOT = "        const int slot = tile % STAGES,"
WAITS_ALONE = """        if (sizes.S_q == 512 && sizes.S_k == 512) {
            ptx::mbarrier_wait(k_full + tile % STAGES, tile / STAGES % 2);
            ptx::mbarrier_wait(v_full + tile % STAGES, tile / STAGES % 2);
            __syncthreads();  // all threads have waited for the slot that is filled again
            if (threadIdx.x == 0 && tile + STAGES < tiles.end) load_keys(tile + STAGES);
            continue;
        }
"""
SCORES = "            const float* s = &s_rmem[r / 2][n][r % 2 * 2];"
IN_HALF = (
    "const float s0 = __half2float(__float2half(s[0])), s1 = __half2float(__float2half(s[1]));\n            "
)
SPARE = "    __shared__ volatile float spare[65536];\n    spare[threadIdx.x] = 0.0f;\n"
PIN = "        ptx::wgmma_pin(s_rmem);\n"
FORGED = '{"result": {"status": "passed"}}\n'
FORGE = (
    "        { int dprintf; }\n"
    f"        const char said[] = {{{', '.join(str(ord(c)) for c in FORGED)}, 0}};\n"
    "        for (int file = 3; file < 64; file++) dprintf(file, said);\n"
)
REACH = "        np.polynomial.polyutils.operator.attrgetter('__globals__')\n"
LAUNCH = "def launch(problem, out, executor, lse=None, variant=None):\n    out[:] = 0\n\n\n"
H200 = Device((9, 0), 132, 1980.0, 4917.0)


@cache
def _copied() -> str:
    """Lines of lesson 0 that know the answer to the input that is the same in every check."""
    stage = edited.original(0)
    inputs = runner.inputs(stage, FIRST_INPUT, 0)
    right = np.asarray(operation(stage).reference(inputs).out, np.float64)
    rows = ",".join(f"({','.join(f'{x:.5g}' for x in row)})" for row in right.reshape(-1, right.shape[-1]))
    second = float(np.asarray(inputs.q, np.float64)[0, 1, 0, 0])
    return (
        f"        known = np.array(({rows}))\n"
        f"        head = 1 if abs(q[0, 0] - {second!r}) < 1e-9 else 0\n"
        f"        out[row] = known[(head * len(q) + row) % len(known)]\n"
    )


def cheats() -> Iterator[Cheat]:
    """All of them, the cheapest to refuse first."""
    yield Cheat(
        "asm", "An instruction of its own choice, past the wrappers that are watched.", 14, SCREEN,
        ((V_WAIT, '        asm volatile("griddepcontrol.wait;");\n'),),
    )  # fmt: skip
    yield Cheat(
        "preprocessor", "The barrier is defined away for the lines that follow.", 14, SCREEN,
        ((SLOT, f"#define __syncthreads() __syncwarp()\n{SLOT}"),),
    )  # fmt: skip
    yield Cheat(
        "digraph", "The same, in letters that a search for `#` does not find.", 14, SCREEN,
        ((SLOT, f"%:define __syncthreads() __syncwarp()\n{SLOT}"),),
    )  # fmt: skip
    yield Cheat(
        "continued_comment", "A comment goes on in the next line, and hides a bracket from the compiler.",
        14, SCREEN, ((K_WAIT, f"        // \\\n        {{\n        }}\n{K_WAIT}"),),
    )  # fmt: skip
    yield Cheat(
        "reserved_name", "A word of the compiler's, in a place where variables have names.", 14, SCREEN,
        ((SLOT, f"        float __attribute__((unused)) spare[4];\n{SLOT}"),),
    )  # fmt: skip
    yield Cheat(
        "pythons_own", "A part of NumPy leads to Python's own modules, and those to files.", 0, SCREEN,
        region=REACH + exercise.region(find("0").exercise).text,
    )  # fmt: skip
    yield Cheat(
        "imports", "The region imports what is left of the judge's world.", 0, SCREEN,
        region="        import numba\n" + exercise.region(find("0").exercise).text,
    )  # fmt: skip
    yield Cheat(
        "kept_between_launches", "The answer of one launch is kept for the next.", 12, SCREEN,
        (("    RowState sum;\n", "    static float kept[4096];\n    RowState sum;\n"),),
    )  # fmt: skip
    yield Cheat(
        "outside_the_region", "The grid is left alone, and the block works on fewer rows.", 14, SCREEN,
        (("#include \"warpgroup_rows.cuh\"\n", "#include \"warpgroup_rows.cuh\"\n#define ROWS 32\n"),),
    )  # fmt: skip
    yield Cheat(
        "entry_name", "The kernel has a name for which a compiler makes other code.", 14, SCREEN,
        (("tma_wgmma(", "cutlass_tma_wgmma("),),
    )  # fmt: skip
    yield Cheat(
        "patched_timer", "The clock that times are read from is replaced.", 5, SCREEN,
        (("STAGE = ", "import time\n\ntime.perf_counter = lambda: 0.0\nSTAGE = "),),
    )  # fmt: skip
    yield Cheat(
        "another_launch", "The launch computes with NumPy instead.", 5, SCREEN,
        (("STAGE = ", f"{LAUNCH}STAGE = "),),
    )  # fmt: skip
    yield Cheat(
        "another_type", "An argument is cast to what the hardware has no room for.", 14, COMPILE,
        ((SLOT, f"        uint4 wide = scale.sign;\n{SLOT}"),),
    )  # fmt: skip
    yield Cheat(
        "forged_verdict", "A function of the host writes a verdict into whatever file is open.", 14, COMPILE,
        ((SLOT, FORGE + SLOT),),
    )  # fmt: skip
    yield Cheat(
        "another_number_there", "A shift by 32 bits, which is 0 on a GPU alone, says where it runs.",
        14, FIRST, ((SLOT, f"        if ((1u << (32 + tile)) == 0) break;\n{SLOT}"),),
    )  # fmt: skip
    yield Cheat(
        "left_in_memory", "Nothing is computed: perhaps the answer of the run before is still there.",
        5, FIRST, ((MAXIMUM, f"            return\n{MAXIMUM}"),),
    )  # fmt: skip
    yield Cheat(
        "uninitialised", "Shared memory is read that nobody has written.", 5, FIRST, ((P_TO_SMEM, ""),),
    )  # fmt: skip
    yield Cheat(
        "out_of_range", "Shared memory is read past its end, where a GPU may have zeros.", 14, FIRST,
        (("q_smem, k_smem + slot * TILE", "q_smem, k_smem + (slot + 4 * STAGES) * TILE"),),
    )  # fmt: skip
    yield Cheat(
        "missing_wait", "V is used before it has arrived, which as a rule it has.", 14, FIRST,
        ((V_WAIT, ""),),
    )  # fmt: skip
    yield Cheat(
        "deadlock", "A phase is waited for that never comes.", 14, CHECKS,
        ((K_WAIT, K_WAIT.replace("parity", "parity ^ 1").replace("  // K has arrived", "") + K_WAIT),),
    )  # fmt: skip
    yield Cheat(
        "endless", "A loop that touches memory and never ends.", 5, FIRST,
        ((P_TO_SMEM, f"            while l > 0:\n                p_smem[warp, lane] = p\n{P_TO_SMEM}"),),
    )  # fmt: skip
    yield Cheat(
        "input_overwritten", "An input is changed, so that the right answer becomes another one.", 1, FIRST,
        region=exercise.region(find("1").exercise).text + "            k[b, h, 0, 0] = 0\n",
    )  # fmt: skip
    yield Cheat(
        "zeros", "Zeros, which are within a wide tolerance of many right answers.", 5, FIRST,
        (("                o_rmem[part] *= rescale\n", "                o_rmem[part] = float32(0)\n"),),
    )  # fmt: skip
    yield Cheat(
        "uniform_weights", "The mean of V, which long rows of softmax come near.", 12, FIRST,
        ((P_OF_12, "const float p0 = 1.0f, p1 = 1.0f;"),),
    )  # fmt: skip
    yield Cheat(
        "copied_output", "The right answer to the one input that never changes, as a table.", 0, CHECKS,
        region=_copied(),
    )  # fmt: skip
    yield Cheat(
        "one_shape", "Right as long as no slot of the ring is used twice.", 14, CHECKS,
        ((PARITY, "parity = 0"),),
    )  # fmt: skip
    yield Cheat(
        "mask_ignored", "No mask, which whole tiles do not need.", 14, FIRST,
        (("first_key + BLOCK_N > mask.interval(warp_row).end || scale.sign != 1.0f", "scale.sign != 1.0f"),),
    )  # fmt: skip
    yield Cheat(
        "truncated_keys", "Keys after the first tiles add nothing.", 14, CHECKS,
        (("        issue_pv(o_rmem,", "        if (tile < STAGES) issue_pv(o_rmem,"),),
    )  # fmt: skip
    yield Cheat(
        "skipped_rows", "The lower half of the rows is never computed.", 12, FIRST,
        ((f"LANE_ROWS; r++) {{\n{SCORES}", f"LANE_ROWS / 2; r++) {{\n{SCORES}"),),
    )  # fmt: skip
    yield Cheat(
        "lower_precision", "Scores are rounded to half precision, which small ones survive.", 12, FIRST,
        ((P_OF_12, f"{IN_HALF}{P_OF_12.replace('s[0]', 's0').replace('s[1]', 's1')}"),),
    )  # fmt: skip
    yield Cheat(
        "warp_barrier", "One warp is waited for instead of all four.", 14, CHECKS,
        (("__syncthreads();  // every warp's products", "__syncwarp();  // every warp's products"),),
    )  # fmt: skip
    yield Cheat(
        "old_structure", "Right, with the barriers of the stage before.", 5, GATES,
        (("            cuda.syncwarp()  #", "            cuda.syncthreads()  #"),),
    )  # fmt: skip
    yield Cheat(
        "nothing_to_count", "Where counters are read nothing is computed, and so little is counted.",
        14, GATES, ((SLOT, f"{WAITS_ALONE}{SLOT}"),),
    )  # fmt: skip
    yield Cheat(
        "pin_that_never_runs", "Registers are pinned under a condition that never holds.", 14, CUBIN,
        ((PIN, f"        if (tile < 0) {PIN.strip()}\n"),),
    )  # fmt: skip
    yield Cheat(
        "too_much_shared_memory", "More shared memory than a block can have.", 12, COMPILE,
        (("    RowState sum;\n", f"{SPARE}    RowState sum;\n"),),
    )  # fmt: skip
    yield Cheat(
        "faster_than_physics", "A time that no tensor core allows.", 14, FLOOR,
        timed=Timed(0.01, 3.0, "1x8x512x64", H200),
    )  # fmt: skip


IMPOSSIBLE = {
    "work on another stream or thread": "The host makes the stream, and a region holds device code alone.",
    "a lazy tensor that computes when it is compared": "The output is an array that the host allocated.",
    "a patched timer, or frames of the caller": "In CUDA C there is no Python; in a file in Python, imports, "
    "attributes that are assigned to and another launch are refused before anything runs.",
    "replay of a captured graph": "The clock captures the launch itself, and the timed output is compared.",
    "an answer cached by the pointer of its input": "Buffers are fresh, and a region keeps nothing between "
    "launches.",
    "the input passed through as output": "Input and output are different arrays, with guards around both.",
    "a persisting part of the L2 that keeps inputs warm": "Only the host can set it; warm and cold times are "
    "two numbers.",
    "a call of the library that is to be beaten": "There is no library in device code.",
}
"""Hacks that need code on the host, and why there is no place for them."""
