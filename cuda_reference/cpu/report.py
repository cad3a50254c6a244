"""What a launch reports: problems, and counts by source line."""

import linecache
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple

from cuda_reference.cpu import tools
from cuda_reference.cpu.facts import Memory, Piece, Thread, Variable, pieces_of
from cuda_reference.files import MachineError, fork_safe

if TYPE_CHECKING:
    from cuda_reference.cpu.build import Held

from cuda_reference.cpu.unset import only_copied

KINDS = {
    "race": "two threads of a block or cluster touch the same bytes, one writes, and nothing orders them",
    "race between blocks": "a block writes global memory that another touches, with nothing that orders them",
    "missing wait": "memory or registers are used while cp.async, TMA or wgmma still works on them",
    "missing fence": "TMA or wgmma meets what ordinary instructions did, with no fence for it between",
    "divergent barrier": "some threads of a block wait at one __syncthreads, others at another",
    "barrier after exit": "threads of a block returned before a __syncthreads that the others reach",
    "deadlock": "threads wait for what will never come",
    "warp mask": "a warp instruction names other lanes than those that execute it, or lanes elsewhere",
    "out of bounds": "an access outside every array of the launch, shared memory or a local array",
    "uninitialised read": "shared or scratch memory, an mbarrier or a fragment is read before it is written",
    "misaligned": "an address is no multiple of what the access needs",
    "division by zero": "an integer division by zero",
    "undefined value": "a shift by all bits or more, or a float too large for its integer: a GPU differs",
    "bad instruction": "an instruction is used against its rules",
    "finished block": "shared memory of a block of the cluster is touched after all its threads returned",
    "endless loop": "threads go in a circle: nothing changes the memory or the registers that they look at",
    "stack overflow": "a thread's local variables outgrow the 512 KB that it may have",
    "time limit": "the launch was stopped by its caller's time_limit: it might have ended later",
}
"""Every kind of problem that a report can name, and what it means."""

ABOUT = {
    "ledger": "an mbarrier's phase lacks arrivals or bytes",
    "arrivals": "an mbarrier gets more arrivals than it was initialised for",
    "barrier arrivals": "a numbered barrier gets more arrivals than it waits for",
    "initialisation": "nothing makes an mbarrier's initialisation visible to the copy engine",
    "accumulators": "registers are those that a wgmma adds to",
    "exit": "a thread returns before what it has started is done",
    "kernels before": "global memory is touched while kernels before may still run (EARLY)",
}
"""What a problem can be about beyond its kind."""

ORDER = ("race", "race between blocks", "missing wait")
SECTOR = 32
MEMORY_OPS = ("load", "store", "atomic")


class Site(NamedTuple):
    """One place in a kernel's source. `caller` is the call of the function it is in, if that was inlined."""

    file: str
    line: int
    text: str
    caller: "Site | None" = None


@dataclass
class KernelProblem:
    """One thing that is wrong, at one place or, for a race, between two.

    `kind` is a key of `KINDS`; `line` and `other_line` are 1-based (`other_line` is None where only one place
    is involved). Of the first occurrence: `pieces` are what `text` is made of, words and facts (memory,
    threads, block, lines, a variable); `about` is a key of `ABOUT` where more can be said than the kind says.
    `count` says how often it was seen.
    """

    kind: str
    site: Site
    other: Site | None
    pieces: tuple[Piece, ...]
    count: int = 1
    about: str = ""

    @property
    def text(self) -> str:
        """What happened the first time: in which memory, by which threads."""
        return "".join(map(str, self.pieces))

    @property
    def memory(self) -> Memory | None:
        """The memory that it is about."""
        return next((piece for piece in self.pieces if isinstance(piece, Memory)), None)

    @property
    def threads(self) -> list[int]:
        """The threads of the block that the text names."""
        return [piece.number for piece in self.pieces if isinstance(piece, Thread)]

    @property
    def variable(self) -> str:
        """The local variable that it is about, "" where there is none."""
        return next((piece.name for piece in self.pieces if isinstance(piece, Variable)), "")

    @property
    def file(self) -> str:
        return self.site.file

    @property
    def line(self) -> int:
        return self.site.line

    @property
    def other_line(self) -> int | None:
        return self.other.line if self.other else None

    def __str__(self) -> str:
        where = f"{PurePath(self.file).name}:{self.line} `{self.site.text}`"
        if self.other:
            same = self.other.file == self.file
            place = (
                f"line {self.other.line}" if same else f"{PurePath(self.other.file).name}:{self.other.line}"
            )
            where += f" and {place} `{self.other.text}`"
        times = f" (x{self.count})" if self.count > 1 else ""
        return f"{self.kind}: {where}: {self.text}{times}"


class ExecutionError(Exception):
    """A kernel has problems: the message lists them, `problems` holds them, `launch` the whole result."""

    def __init__(self, launch: "Launch"):
        self.launch = launch
        self.problems = launch.problems
        super().__init__(
            "\n".join([f"{launch.kernel}: {len(self.problems)} problem(s)", *map(str, self.problems)])
        )


@dataclass(frozen=True)
class LineCounts:
    """What one place of the source did.

    `op` is load, store or atomic (with `space` and `array`); barrier, shuffle, vote, syncwarp, mma, wgmma,
    wait, arrive or wait at once (`requests` counts warps, for wait and arrive threads; of "wait at once" it
    counts groups of cp.async that a thread waited for without a barrier since it committed them); arrive
    under way: threads that arrived at a named barrier, without waiting, while their wgmma ran on, and release
    under way: at an mbarrier; or
    tma load, tma store, bulk load, bulk store, bulk add (`requests` counts instructions); or, with "block 0
    to block 1" as `array`, store async and bulk copy (`requests` counts threads); store under way: threads
    that did a store async while their wgmma ran on.
    """

    file: str
    line: int
    text: str
    op: str
    space: str = ""
    array: str = ""
    requests: int = 0
    lanes: int = 0
    bytes_requested: int = 0
    bytes_needed: int = 0
    bytes_moved: int = 0
    sectors: int = 0
    wavefronts: int = 0
    conflicts: int = 0
    worst: int = 0

    @property
    def efficiency(self) -> float:
        return self.bytes_needed / self.bytes_moved if self.bytes_moved else 1.0

    @property
    def degree(self) -> float:
        return self.wavefronts / max(1, self.wavefronts - self.conflicts)


@fork_safe
class Launch:
    """The result of one launch. `seconds` is how long the executor took, which says nothing of a GPU."""

    def __init__(self, kernel: str, report: str, places: "Places", seconds: float):
        self.kernel = kernel
        self.seconds = seconds
        self._places = places
        records = [record.split("\x1f")[:-1] for record in report.split("\x1e") if record]
        self._problems = [record[1:] for record in records if record[0] == "problem"]
        self._rows = [record[1:] for record in records if record[0] == "row"]

    @cached_property
    def problems(self) -> list[KernelProblem]:
        """What is wrong, in the order in which it was seen; of one kind and pair of lines only the first."""
        self._places.look_up(place for record in self._problems for place in record[1:3])
        found: dict[tuple, KernelProblem] = {}
        for kind, place, other, sent, count in self._problems:
            site, other_site = self._places[place], self._places[other] if other else None
            key = (kind, site[:2], other_site and other_site[:2])
            if key in found:
                found[key].count += int(count)
            else:
                pieces, about = pieces_of(sent, lambda: self._places.arrays)
                found[key] = KernelProblem(kind, site, other_site, pieces, int(count), about)
        # What is read too early in one order is never written in another: the race says it all. A local
        # variable, whose declaration is the other place, is no part of a race.
        unordered = {
            site[:2] for p in found.values() if p.kind in ORDER for site in (p.site, p.other) if site
        }
        return [
            p
            for p in found.values()
            if p.kind != "uninitialised read" or not (_is_copy(p) if p.other else p.site[:2] in unordered)
        ]

    @cached_property
    def _lines(self) -> list[LineCounts]:
        self._places.look_up(record[0] for record in self._rows)
        sums: dict[tuple[str, int, str, str, str, str], list[int]] = defaultdict(lambda: [0] * 8)
        for place, op, space, array, *fields in self._rows:
            site = self._places[place]
            total = sums[site.file, site.line, site.text, op, space, array]
            *added, largest = map(int, fields)
            total[:7] = [a + b for a, b in zip(total, added, strict=False)]
            total[7] = max(total[7], largest)
        rows = []
        for place_and_op, numbers in sums.items():
            requests, lanes, wanted, needed, sectors, waves, ideal, worst = numbers
            moved, conflicts = sectors * SECTOR, waves - ideal
            traffic = (requests, lanes, wanted, needed, moved, sectors, waves, conflicts, worst)
            rows.append(LineCounts(*place_and_op, *traffic))
        return sorted(rows, key=lambda row: (row.file, row.line, row.op, row.array))

    def check(self) -> "Launch":
        """Raises ExecutionError when there is any problem; otherwise returns the launch itself."""
        if self.problems:
            raise ExecutionError(self)
        return self

    def lines(self) -> list[LineCounts]:
        """The counts by source line, where the launch counted."""
        return self._lines

    def totals(self) -> dict[str, int]:
        """All counters of the launch; those of memory are named space_op_what."""
        out: dict[str, int] = {}
        wanted = {
            "global": ("requests", "lanes", "sectors", "bytes_requested", "bytes_needed", "bytes_moved"),
            "shared": ("requests", "lanes", "bytes_requested", "wavefronts", "conflicts"),
        }
        for op in MEMORY_OPS:
            for space, names in wanted.items():
                rows = [row for row in self._lines if (row.op, row.space) == (op, space)]
                for name in names:
                    out[f"{space}_{op}_{name}"] = sum(getattr(row, name) for row in rows)
                if space == "shared":
                    out[f"shared_{op}_ideal_wavefronts"] = sum(row.wavefronts - row.conflicts for row in rows)
        out["barriers"] = sum(row.requests for row in self._lines if row.op == "barrier")
        for op in ("shuffle", "vote", "syncwarp"):
            out[op] = 0
        for row in self._lines:
            if row.op not in (*MEMORY_OPS, "barrier"):
                name = row.op.replace(" ", "_")
                out[name] = out.get(name, 0) + row.requests
                if row.bytes_moved or row.space == "cluster":
                    out[f"{name}_bytes"] = out.get(f"{name}_bytes", 0) + row.bytes_requested
        return out

    def __repr__(self) -> str:
        state = "\n".join(map(str, self.problems)) or "no problems"
        return f"<{self.kernel}: {state}>"


def _is_copy(problem: KernelProblem) -> bool:
    """Whether a variable without a value is only copied where it is read: a loop may do so at its end."""
    return only_copied(problem.variable, problem.site.text, "".join(linecache.getlines(problem.file)))


@fork_safe
class Places:
    """Turns the runtime's places, "file:line" or "pc:address", into sites; knows one library."""

    def __init__(self, library: "Held", texts: Mapping[str, bytes], internal: tuple[Path, ...]):
        self._library = library
        self._texts = texts
        self._internal = tuple(map(str, internal))
        self._known: dict[str, Site] = {}

    def __getitem__(self, place: str) -> Site:
        return self._known[place]

    @cached_property
    def arrays(self) -> list[tuple[int, int, str]]:
        """First byte, size and name of each static shared array: thread-local variables of the library."""
        said = self._read(["nm", "-SC"])
        rows = re.findall(r"^([0-9a-f]+) ([0-9a-f]+) [bB] (?:.*::)?(\w+)$", said, re.MULTILINE)
        return [(int(first, 16), int(size, 16), name) for first, size, name in rows if name != "smem"]

    def look_up(self, places: Iterable[str]) -> None:
        """Makes the places known, with one call of addr2line for all program counters."""
        new = {place for place in places if place and place not in self._known}
        counters = sorted(place[3:] for place in new if place.startswith("pc:"))
        for place in new:
            if not place.startswith("pc:"):
                file, _, line = place.rpartition(":")
                self._known[place] = self._site(file, int(line))
        if not counters:
            return
        said = self._read(["addr2line", "-a", "-i", "-e"], "\n".join(counters))
        blocks = [block.splitlines() for block in ("\n" + said).split("\n0x")[1:]]
        answered = [int(block[0], 16) for block in blocks if block]
        if answered != [int(counter, 16) for counter in counters] or min(map(len, blocks)) < 2:
            raise MachineError(
                f"addr2line was asked for {len(counters)} places of {self._library.path.name} and gave other "
                f"answers: {said[:200]!r}"
            )
        for counter, (_, *frames) in zip(counters, blocks, strict=True):
            self._known[f"pc:{counter}"] = self._innermost(frames)

    def _read(self, command: list[str], text: str = "") -> str:
        """What a command says of the library. Raises MachineError where it fails."""
        done = tools.call([*command, self._library.open_path], text, [self._library.descriptor])
        tools.check(done)
        return done.stdout

    def _innermost(self, frames: list[str]) -> Site:
        """The innermost frame of the kernel's own source, and the one that called it."""
        places = []
        for frame in frames:
            file, _, line = frame.split(" (")[0].rpartition(":")
            number = int(line) if line.isdigit() else 0
            if (file, number) not in places:
                places.append((file, number))
        own = [place for place in places if not place[0].startswith(self._internal)] or places
        return self._site(*own[0], caller=self._site(*own[1]) if len(own) > 1 else None)

    def _site(self, file: str, line: int, caller: Site | None = None) -> Site:
        """With the line's text as it was compiled: the file may have been edited since."""
        text = self._texts.get(file)
        if text is None:  # a header of the compiler
            return Site(file, line, linecache.getline(file, line).strip(), caller)
        lines = text.decode(errors="replace").split("\n")
        return Site(file, line, lines[line - 1].strip() if 0 < line <= len(lines) else "", caller)
