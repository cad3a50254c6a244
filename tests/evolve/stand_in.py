"""A judge that reads words, a proposer that says what it is told to, and searches with both."""

from rich.console import Console

from flashcore_numba.course.lessons import find
from flashcore_numba.evolve import engine, region
from flashcore_numba.evolve.evaluate import Evaluation
from flashcore_numba.evolve.proposers import BLOCK, Reply
from flashcore_numba.run.progress import Progress

QUIET = Progress(Console(quiet=True))
LESSON = find("14")
OWN = region.own(LESSON)
GATES = LESSON.exercise.gates
FIRST, *_, LAST = OWN.splitlines()


class Judge:
    """Rejects a file with the word `bug`, and finds one fitter for each word `faster`."""

    def __init__(self):
        self.texts = []

    def __call__(self, path, lesson=None):
        text = path.read_text()
        self.texts.append(text)
        counters = {
            gate.what: text.count(word) for gate, word in zip(GATES, ("sync", "ptx::", "\n"), strict=True)
        }
        lines = text.splitlines()
        line = next((n for n, each in enumerate(lines, 1) if "bug" in each), None)
        if line is not None:
            says, advice = "Written by one, read by another.", "Look at the wait."
            return Evaluation(lesson, False, "race", says, line, advice, counters=counters)
        fitness = 1 + 0.1 * text.count("faster")
        return Evaluation(lesson, True, None, "", counters=counters, fitness=fitness, basis="words", seed=7)


class Says:
    """Replies in turn; an exception among them is raised. `asked` is what it was asked for."""

    name = "says"

    def __init__(self, *replies):
        self.replies, self.asked, self.closed = replies, [], False

    async def propose(self, asked):
        self.asked.append(asked)
        reply = self.replies[asked.number - 1]
        if isinstance(reply, BaseException):
            raise reply
        return Reply(reply, f"operator {asked.number}", f"Sentence {asked.number}.")

    async def close(self):
        self.closed = True


def before_last(word):
    """A reply: a comment with this word before the region's last line."""
    return BLOCK.format(old=LAST, new=f"        // {word}\n{LAST}")


def search(proposer, iterations, judge=None, **options):
    return engine.evolve(LESSON, proposer, iterations, QUIET, judge=judge or Judge(), **options)


def trace(record):
    """What a seed repeats."""
    return [
        (each.number, each.parent, each.island, each.operator, each.region, each.valid, each.layer)
        for each in record.candidates
    ]
