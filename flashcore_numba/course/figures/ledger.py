"""The mbarriers of stage 14's ring, event by event: phases, arrivals and bytes that are missing."""

from dataclasses import dataclass, field
from typing import Any

from flashcore_numba.course.figures.canvas import GREY, INK, ORANGE, SKY, VERMILION, lettered, paper, png
from flashcore_numba.course.figures.cuda import launched
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.stages import Stage
from flashcore_numba.stages.edited import Edit, edited

SHAPE = "1x1x512x64"
STAGES, Q_BYTES, TILE_BYTES = 2, 64 * 64 * 2, 128 * 64 * 2


@dataclass
class Mbarrier:
    """One mbarrier as the PTX ISA describes it: phase 0, 1, ... ends when both counts are 0."""

    arrivals: int = 1
    phase: int = 0
    pending: int = field(init=False)
    bytes: int = 0
    expected: int = 0

    def __post_init__(self) -> None:
        self.pending = self.arrivals

    def arrive_expect(self, count: int) -> None:
        """A thread arrives, and lets the phase wait for `count` bytes."""
        assert self.pending, "more arrivals than the mbarrier counts"
        self.bytes += count
        self.expected = self.bytes
        self.pending -= 1
        self._end()

    def deliver(self, count: int) -> None:
        """The copy engine has written `count` bytes."""
        self.bytes -= count
        self._end()

    def passes(self, parity: int) -> bool:
        """Whether a wait for this parity returns now: the phase it names is not the current one."""
        return self.phase % 2 != parity

    def _end(self) -> None:
        if not self.pending and not self.bytes:
            self.phase, self.pending, self.expected = self.phase + 1, self.arrivals, 0


@dataclass(frozen=True)
class Moment:
    """What has happened, the state of each mbarrier after it, and those it concerned."""

    told: str
    state: dict[str, tuple[int, int, int, int]]  # name -> phase, pending arrivals, bytes missing, expected
    touched: tuple[str, ...]


def moments() -> list[Moment]:
    """The protocol for the first three tiles, with two slots, in one possible order of arrival."""
    ring = {name: Mbarrier() for name in ("q_full", "k_full[0]", "v_full[0]", "k_full[1]", "v_full[1]")}
    seen: list[Moment] = []

    def note(told: str, *touched: str) -> None:
        state = {name: (m.phase, m.pending, m.bytes, m.expected) for name, m in ring.items()}
        seen.append(Moment(told, state, touched))

    def ask(tile: int) -> tuple[str, str]:
        names = (f"k_full[{tile % STAGES}]", f"v_full[{tile % STAGES}]")
        for name in names:
            ring[name].arrive_expect(TILE_BYTES)
        return names

    def wait(name: str, parity: int) -> str:
        return "returns" if ring[name].passes(parity) else "waits"

    note("Thread 0 has initialised every mbarrier for one arrival a phase. All are in phase 0.", *ring)
    said = wait("k_full[1]", 1)
    note(
        f"Beware: a wait for parity 1 {said} now. The phase before phase 0 counts as complete, so "
        "a wrong parity is no deadlock but a read of what is not there.",
        "k_full[1]",
    )
    ring["q_full"].arrive_expect(Q_BYTES)
    ask(0), ask(1)
    note(
        "Thread 0 has announced Q and the tiles 0 and 1: it arrives once at each, and adds the bytes.", *ring
    )
    ring["k_full[0]"].deliver(TILE_BYTES // 2)
    ring["q_full"].deliver(Q_BYTES)
    said = wait("k_full[0]", 0)
    note(f"Q is there, its phase 0 has ended. Half of K 0 is there: wait(k_full[0], 0) {said}.", "q_full",
         "k_full[0]")  # fmt: skip
    ring["k_full[0]"].deliver(TILE_BYTES // 2)
    said, other = wait("k_full[0]", 0), wait("v_full[0]", 0)
    note(
        f"The last bytes of K 0 have come: phase 0 ends by itself. wait(k_full[0], 0) {said}; Q K^T starts. "
        f"wait(v_full[0], 0) would be: {other}.",
        "k_full[0]",
    )
    ring["v_full[0]"].deliver(TILE_BYTES)
    ring["k_full[1]"].deliver(TILE_BYTES)
    note("While the softmax runs, V 0 and K 1 arrive.", "v_full[0]", "k_full[1]")
    names = ask(2)
    note(
        "Turn 0 ends: its products are finished, and all four warps have passed the barrier. Thread 0 asks "
        "for tile 2 in slot 0: phase 1 of both mbarriers begins to count.",
        *names,
    )
    said = wait("k_full[1]", 0)
    ring["v_full[1]"].deliver(TILE_BYTES)
    names = ask(3)
    note(
        f"Turn 1: wait(k_full[1], 0) {said} at once, K 1 has been there. At its end tile 3 is asked for.",
        *names,
    )
    said, wrong = wait("k_full[0]", 1), wait("k_full[0]", 0)
    note(
        f"Turn 2, slot 0 again: wait(k_full[0], 1) {said}, since phase 1 has not ended. With parity 0 it "
        f"would be: {wrong}, with K 0 or half of K 2 in the slot.",
        "k_full[0]",
    )
    ring["k_full[0]"].deliver(TILE_BYTES)
    said = wait("k_full[0]", 1)
    note(f"K 2 has arrived, phase 1 ends: wait(k_full[0], 1) {said}.", "k_full[0]")
    return seen


def reports(old: str, new: str) -> list[str]:
    """What the executor says of stage 14 with `new` in the place of `old`: kind and words of each problem."""
    with edited(14, Edit(old, new, "stage14_tma_wgmma.cu")) as stage:
        found = launched(stage, SHAPE)
    return [f"{problem.kind}: {problem.text}" for launch in found for problem in launch.problems]


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """A frame for each event of the protocol; the last one says what was counted in the kernel at hand."""
    found = launched(stage, SHAPE)
    sums = {key: sum(launch.totals().get(key, 0) for launch in found)
            for key in ("arrive", "tma_load", "tma_load_bytes")}  # fmt: skip
    counted = (
        f"Counted in {whose} at {SHAPE}: {sums['arrive']:,} arrivals announce {sums['tma_load']:,} copies of "
        f"{sums['tma_load_bytes']:,} bytes."
    )
    every = moments()
    frames = tuple(_frame(moment, counted * (moment is every[-1])) for moment in every)
    return Figure(f"The ledger of the mbarriers, two slots, 128 keys per tile: {whose}", frames, 4)


def _frame(moment: Moment, counted: str) -> Frame:
    figure = paper(9.4, 2.6)
    axes = figure.add_axes((0.02, 0.04, 0.96, 0.92))
    axes.set_axis_off()
    axes.set_xlim(0, 100)
    axes.set_ylim(len(moment.state) + 0.1, -1)
    for x, text in ((1, "mbarrier"), (18, "phase (parity)"), (36, "arrivals missing"), (56, "bytes missing")):
        axes.text(x, -0.45, text, va="center", fontweight="bold")
    for y, (name, (phase, pending, missing, expected)) in enumerate(moment.state.items()):
        if name in moment.touched:
            axes.broken_barh([(0, 99.5)], (y + 0.04, 0.92), fc="#EAF4FB", ec="none")
        axes.text(1, y + 0.5, name, va="center", family="DejaVu Sans Mono")
        axes.text(18, y + 0.5, f"{phase} ({phase % 2})", va="center")
        axes.text(36, y + 0.5, str(pending), va="center", color=VERMILION if pending else INK)
        axes.broken_barh([(56, 30)], (y + 0.2, 0.6), fc=GREY, ec="#888888", lw=0.6)
        if expected:
            here = expected - missing
            axes.broken_barh([(56, 30 * here / TILE_BYTES)], (y + 0.2, 0.6), fc=SKY, ec=INK, lw=0.6)
            rest = (56 + 30 * here / TILE_BYTES, 30 * missing / TILE_BYTES)
            axes.broken_barh([rest], (y + 0.2, 0.6), fc=ORANGE, ec=INK, hatch="////", lw=0.6)
        axes.text(87, y + 0.5, f"{missing:,}", va="center")
    table = "; ".join(
        f"{name} phase {phase}, {pending} arrival{'s' * (pending != 1)} and {missing:,} bytes missing"
        for name, (phase, pending, missing, _) in moment.state.items()
    )
    caption = f"{moment.told} {counted}".strip()
    return Frame(png(figure), caption, f"{moment.told} State: {table}. {counted}".strip())
