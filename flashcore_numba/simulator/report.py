"""The counts of a launch as rows of data and as a table."""

from dataclasses import dataclass
from pathlib import PurePath

from flashcore_numba.simulator.count import SECTOR, Counter
from flashcore_numba.simulator.memory import GLOBAL, SHARED
from flashcore_numba.simulator.problems import Site

OPS = ("load", "store", "atomic")


@dataclass(frozen=True)
class Row:
    """What one place of the source did.

    `op` is load, store or atomic (with `space` and `array`), barrier, shuffle, vote, syncwarp (`requests`
    counts warps), or an arithmetic operation such as fma32 (`lanes` counts threads). `efficiency` is, for
    global memory, the needed share of the bytes moved; `degree` is, for shared memory, wavefronts over
    ideal wavefronts.
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


def _row(site: Site, op: str, **counts) -> Row:
    return Row(site.file, site.line, site.text, op, **counts)


def rows(counter: Counter, sites: list) -> list[Row]:
    """All rows, in the order of the source lines."""
    out = []
    for (site, op), t in counter.traffic.items():
        out.append(
            _row(
                sites[site],
                OPS[op],
                space=t.space,
                array=t.array,
                requests=t.requests,
                lanes=t.lanes,
                bytes_requested=t.bytes_requested,
                bytes_needed=t.bytes_needed,
                bytes_moved=t.bytes_moved,
                sectors=t.sectors,
                wavefronts=t.wavefronts,
                conflicts=t.conflicts,
                worst=t.worst,
            )
        )
    for site, warps in counter.barriers.items():
        out.append(_row(sites[site], "barrier", requests=warps))
    for (kind, site), warps in counter.collectives.items():
        out.append(_row(sites[site], kind, requests=warps))
    for (kind, bits, site), lanes in counter.operations.items():
        out.append(_row(sites[site], f"{kind}{bits}", lanes=lanes))
    return sorted(out, key=lambda row: (row.file, row.line, row.op, row.text))


def totals(counter: Counter) -> dict:
    """All counters of the launch; the keys of memory are space_op_what, see `Launch.totals`."""
    out = {}
    per_space = {
        GLOBAL: ("requests", "lanes", "sectors", "bytes_requested", "bytes_needed", "bytes_moved"),
        SHARED: ("requests", "lanes", "bytes_requested", "wavefronts", "ideal_wavefronts", "conflicts"),
    }
    for op, op_name in enumerate(OPS):
        for space, fields in per_space.items():
            traffic = [t for (_, o), t in counter.traffic.items() if o == op and t.space == space]
            for field in fields:
                out[f"{space}_{op_name}_{field}"] = sum(getattr(t, field) for t in traffic)
    out["barriers"] = sum(counter.barriers.values())
    for kind in ("shuffle", "vote", "syncwarp"):
        out[kind] = sum(count for (name, _), count in counter.collectives.items() if name == kind)
    out["local_bytes_per_thread"] = sum(counter.local_bytes.values())
    out["shared_bytes_per_block"] = sum(counter.shared_bytes.values())
    out["footprint_bytes"] = {
        name: int(seen.sum()) * SECTOR for name, seen in sorted(counter.footprint.items())
    }
    for kind, bits, site in sorted(counter.operations):
        name = f"{kind}{bits}"
        out[name] = out.get(name, 0) + counter.operations[kind, bits, site]
    return out


def table(heading: str, data: list[Row], summary: dict) -> str:
    """A table of the memory accesses by source line, and the rest of the totals below it."""
    width = min(48, max([12, *(len(row.text) for row in data if row.space)])) + 1
    columns = f"{'line':>5} {'access':<{width}}{'op':<7}{'requests':>10}{'lanes':>11}"
    columns += f"{'sectors':>10}{'sec/req':>8}{'used':>6}{'waves':>10}{'deg':>6}{'worst':>6}"
    out = [heading, columns]
    several = len({row.file for row in data}) > 1
    shown = None
    for row in data:
        if not row.space:
            continue
        if several and row.file != shown:
            shown = row.file
            out.append(PurePath(row.file).name)
        text = f"{row.line:>5} {row.text[: width - 1]:<{width}}{row.op:<7}{row.requests:>10}{row.lanes:>11}"
        if row.space == GLOBAL:
            text += f"{row.sectors:>10}{row.sectors / max(1, row.requests):>8.2f}{row.efficiency:>6.0%}"
        elif row.space == SHARED:
            text += f"{'':>24}{row.wavefronts:>10}{row.degree:>6.1f}{row.worst:>6}"
        out.append(text)
    by_line = tuple(f"{space}_{op}" for space in (GLOBAL, SHARED) for op in OPS)
    rest = [f"{name}={value}" for name, value in summary.items() if value and not name.startswith(by_line)]
    out.append("  ".join(rest))
    return "\n".join(out)
