"""How a search strategy would have searched a recorded space: Kernel Tuner on the record, without a GPU."""

import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

from cuda_reference.extras import MissingPackageError, install
from cuda_reference.shown import shown
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.tune import record as records


def replay(path: Path, strategy: str, evaluations: int) -> dict[str, Any]:
    """Let a strategy of Kernel Tuner look at so many configurations of a record.

    Returns `best`, its name, `time` in milliseconds, how far that is from the record's fastest (`share`, 1 is
    the same), and `seen`, the configurations in the order in which the strategy asked for them. Raises
    ArgumentError, and MissingPackageError without Kernel Tuner.
    """
    record = records.whole(path)
    known = records.timed(record)
    if not known:
        raise ArgumentError(f"{str(path)!r} has no times: only a search on a GPU can be replayed")
    if evaluations < 1:
        raise ArgumentError(f"evaluations is {evaluations}: at least 1 is needed")
    try:
        import kernel_tuner
        from kernel_tuner.interface import strategy_map
    except ImportError:
        raise MissingPackageError(f"Kernel Tuner is not installed: {install('tune')}") from None
    if strategy not in strategy_map:
        raise ArgumentError(f"strategy {shown(strategy)}: accepted are {', '.join(sorted(strategy_map))}")
    options: dict[str, Any] = {} if strategy == "brute_force" else {"max_fevals": evaluations}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        # It knows a finished cache by its last three characters: an entry's brace, the cache's, the record's.
        copy = Path(folder) / "cache.json"
        about = {name: each for name, each in record.items() if name != "cache"}
        copy.write_text(json.dumps(about | {"cache": record["cache"]}))
        results, _ = kernel_tuner.tune_cache(
            str(copy), strategy=strategy, strategy_options=options, quiet=True, verbose=False
        )
    seen = [each for each in results if isinstance(each.get("time"), float)]
    best = min(seen, key=lambda each: each["time"])
    return {
        "strategy": strategy,
        "evaluations": len(results),
        "best": records.config_of(record, best),
        "time": best["time"],
        "share": known[0]["time"] / best["time"],
        "seen": [records.config_of(record, each) for each in results],
    }
