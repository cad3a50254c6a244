"""`flashcore pictures`: what artifacts of `compare` show."""

from argparse import Namespace

from flashcore_numba.cli.output import give_json, progress_bar
from flashcore_numba.records import artifact, ring_timeline
from flashcore_numba.report import pictures


def run(args: Namespace) -> int:
    """Draw what the artifacts allow. Returns 1 where that is nothing."""
    if args.files:
        of_rings = [path for path in args.files if path.match(ring_timeline.PATTERN)]
        timelines = [(path, ring_timeline.load(path)) for path in of_rings]
        records = [(path, artifact.load(path)) for path in args.files if path not in of_rings]
    else:
        records, timelines = artifact.recorded_whole(), ring_timeline.recorded()
    drawable, lacking = pictures.drawable(records, timelines)
    data = []
    with progress_bar() as progress:
        for done, picture in enumerate(drawable, 1):
            files = [str(path) for path in picture.draw(args.save)]
            data.append({"name": picture.name, "files": files, "alt": picture.alt})
            progress.count("drawing", done, len(drawable), picture.name)
    if not give_json(args, lambda: {"pictures": data, "lacking": lacking}):
        for each in data:
            print(f"wrote {' and '.join(each['files'])}: {each['alt']}")
        for name, reason in lacking.items():
            print(f"not drawn: {name}: {reason}")
    return 0 if data else 1
