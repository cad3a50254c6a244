"""Turns of phrase that the project's English does not use, found by pattern in texts that people read.

Read are the Markdown pages without their code, and the comments and strings of all sources: docstrings,
messages, hints.
"""

import io
import re
import subprocess
import tokenize
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/*.md", "lessons/*.md", "site/*.md")
SOURCES = tuple(
    f"{folder}/*.{suffix}"
    for folder in ("flashcore_numba", "cuda_reference", "site")
    for suffix in ("py", "cu", "cuh", "cpp", "h", "js", "css")
)
CODE = "\N{BROKEN BAR}"  # in place of a character that is code

# "31 warps an SM": what is counted, and what it is counted for.
COUNTED = (
    "barrier|mbarrier|warp|block|thread|lane|byte|float|number|element|component|shuffle|key|row|tile|pair|score|"
    "wavefront|sector|register|instruction|conversion|clock|cycle|microsecond|minute|second|FLOP|group|slot|part|"
    "product|exponential|line|fragment|sum|word|bit|entry|result|operation|column"
)
VERBS = "load|store|request|step|launch|copy"  # nouns that are verbs too: a rate only after a number
PLURALS = r"bytes|halves|µs|us|ns|KB|MB|GB|TB|entries|mma|once|twice|columns? of \w+"
FOR = (
    "SM|K/V tile|wavefront|block|warp|warpgroup|thread|lane|quad|tile|row|query row|key|pair|launch|call|run|"
    "iteration|turn|step|slot|second|microsecond|minute|clock|cycle|load|store|request|byte|score|element|head|"
    "stage|lesson|cluster|stream|line|page|entry|kernel"
)
# "For 4 components a thread loads 2 rows" is no rate: a clause begins.
CLAUSE = (
    "(?!s?(?: that| which)?[ ,](?:is|are|has|have|had|can|may|does|do|did|gets?|takes?|needs?|loads|stores|"
    "holds|held|owns|reads|writes|computes|adds|waits|issues|makes|costs|goes|stands|walks|works|of|then|must|would|"
    "will|"
    "belongs|lies|came|started|finished|spans|uses|serves|shows|says|ends|begins|executes|multiplies|leaves|moves|"
    r"asks|passes|puts|sums|delivers|visits|sees|stays|fits)\b)"
)
NUMBER = r"(?<!stage\s)(?<!lesson\s)(?<!phase\s)(?<!section\s)(?<!bit\s)\b(?:an?|one|two|three|four|\d+)"
UNIT = rf"(?:{FOR})\b(?![-']| of\b)(?!(?<=second) (?:time|warpgroup|name|look)){CLAUSE}"


@dataclass(frozen=True)
class Turn:
    """A pattern, what to write instead, and two samples: one that it finds, one that it must not find.

    A blank in the pattern stands for any white space. where: the ends of the names of the files it is for.
    """

    name: str
    pattern: str
    instead: str
    bad: str
    good: str
    where: tuple[str, ...] = ("",)

    def found(self, text: str) -> list[re.Match[str]]:
        return list(re.finditer(self.pattern.replace(" ", r"\s+"), text, re.IGNORECASE))


TURNS = (
    Turn(
        "a rate of many",
        rf"\b(?:(?:{COUNTED})s|{PLURALS})(?: of [a-z]+)?(?: each)? (?<!such\s)an? {UNIT}",
        "per: 31 warps per SM",
        "31 warps an SM",
        "For 4 components a thread loads two rows.",
    ),
    Turn(
        "a rate of a number",
        rf"{NUMBER} (?:(?:[a-z]+ )?(?:{COUNTED}|{VERBS})s?(?: of [a-z]+)? )?(?<!such\s)an? {UNIT}",
        "per: one per clock",
        "and an SM delivers one a\nclock",
        "In stage 08 a block has 8 warps. Stage 05 never stores a score.",
    ),
    Turn(
        "behind",
        r"\bbehind (?:the (?:last|end|first|softmax|products?|loop)|its (?:last|end)|each|it|them|one)\b",
        "past, after",
        "Keys behind the last one count.",
        "the reason behind this number",
    ),
    Turn(
        "stands",
        r"\b(?:stands?|stood) "
        r"(?:at|on|before|after|behind|between|beside|above|below|still|there|under|in(?! for| the way))\b",
        "is, or the verb that says what happens",
        "The mask stands between them.",
        "It stands in for the GPU.",
    ),
    Turn(
        "lies",
        r"\b(?:lies?|lay) (?:in|at|on|between|behind|beside|there|ready|under|above|below|before|after)\b",
        "is",
        "What else lies in the folder",
        "It relies on this.",
    ),
    Turn("whence", r"\bwhence\b", "so, from which", "whence the sum", "hence the sum"),
    Turn("for ever", r"\bfor ever\b", "never ends", "It waits for ever.", "for every row"),
    Turn(
        "whoever", r"\bwho(?:so)?ever\b", "a thread that, code that", "Whoever waits here", "who never waits"
    ),
    Turn(
        "besides", r"\bbesides\b", "also, apart from", "It reads row 0 besides.", "A tile is beside another."
    ),
    Turn(
        "of one mind", r"\bof one mind\b", "uniform across the warp", "a warp is of one mind", "of one minute"
    ),
    Turn("nobody waits", r"\bnobody waits\b", "no warp waits", "nobody waits to send", "nobody measured it"),
    Turn(
        "Not taken:", r"\b(?:not taken:|gone is\b)", "subject, verb", "Not taken: a third one.", "it is gone"
    ),
    Turn("does without", r"\bdo(?:es)? without\b", "needs no", "The sum does without.", "runs without it"),
    Turn("cure", r"\bcures?\b", "remedy", "Lesson 06 had a cure: swap them.", "an obscure, secure procedure"),
    Turn(
        "piece of work", r"\bpieces? of (?:the )?work\b", "work tile", "every piece of work", "a piece of Q"
    ),
    Turn(
        "reference", r"\b(?:raise|follow)_reference\b", "raise_max", "see raise_reference", "cuda_reference"
    ),
    Turn("half sent", r"\bhalf sent\b", "partly sent", "with the tile half sent", "half a sentence"),
    Turn(
        "turn",
        r"\b(?:each|every|next|last|one) turn\b",
        "iteration",
        "P and O pay at every turn",
        "the tiles in turn",
        (".cu", ".cuh"),
    ),
)
# Grammatical all the same.
ALLOWED = {"one a call", "a late key a score"}


def _coded(found: re.Match[str]) -> str:
    return re.sub(r"\S", CODE, found[0])


def _blanked(found: re.Match[str]) -> str:
    return re.sub(r"\S", " ", found[0])


def _masked(text: str, spans: list[tuple[int, int]]) -> str:
    """`text` with the characters outside of `spans` replaced by CODE, white space as it is."""
    kept, at = [], 0
    for start, end in [*spans, (len(text), len(text))]:
        kept += [re.sub(r"\S", CODE, text[at:start]), text[start:end]]
        at = end
    return "".join(kept)


def _markdown(text: str) -> str:
    text = re.sub(r"^ *```.*?^ *```", _coded, text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]+`|\$[^$\n]+\$|\]\([^)\n]+\)", _coded, text)
    return re.sub(r"<!--.*?-->", _blanked, text, flags=re.DOTALL)


def _python(text: str) -> str:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    kinds = {"COMMENT", "STRING", "FSTRING_MIDDLE"}
    spans = [
        (starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1])
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if tokenize.tok_name[token.type] in kinds
    ]
    masked = _masked(text, spans)
    for start, end in spans:  # without their marks, a sentence goes on from line to line
        words = re.sub(r"\A(?:#+|[rbfu]*[\"']+)|[\"']+\Z", _blanked, text[start:end], flags=re.IGNORECASE)
        masked = masked[:start] + words + masked[end:]
    return masked


def _c(text: str) -> str:
    found = re.finditer(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', text, re.DOTALL)
    masked = _masked(text, [match.span() for match in found])
    return re.sub(r'//|/\*|\*/|(?<!\\)"', _blanked, masked)


def prose(path: str, text: str) -> str:
    """What people read in a file: as long as the file, with blanks or CODE in place of the rest."""
    return {".md": _markdown, ".py": _python}.get(Path(path).suffix, _c)(text)


def hits(path: str, text: str) -> list[str]:
    """Each turn in a file: file, line, the words, and what to write instead."""
    found, shown = prose(path, text), []
    for turn in TURNS:
        for match in turn.found(found) if path.endswith(turn.where) else []:
            words, line = " ".join(match[0].split()), found.count("\n", 0, match.start()) + 1
            if words.lower() not in ALLOWED:
                shown.append((line, f"{path}:{line}: '{words}'; instead: {turn.instead}"))
    return [hit for _, hit in sorted(shown)]


def files() -> list[str]:
    listed = ["git", "-C", str(ROOT), "ls-files", *PAGES, *SOURCES]
    return subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: turn.name)
def test_a_turn_is_found_and_what_is_like_it_is_not(turn: Turn) -> None:
    path = f"lessons/sample{turn.where[0] or '.md'}"
    comment = "" if path.endswith(".md") else "// "
    assert any(turn.instead in hit for hit in hits(path, comment + turn.bad.replace("\n", f"\n{comment}")))
    assert not turn.found(turn.good)


@pytest.mark.parametrize(
    "path, text, line",
    [
        ("a.md", "A warp\nwaits <!--us 3-->31<!----> warps\nan SM.\n", 2),
        ("a.md", "```python\n# 31 warps an SM\n```\n", None),
        ("a.md", "`31 warps an SM`\n", None),
        ("a.py", "x = 1\n# a comment: 31 warps\n# an SM\n", 2),
        ("a.py", 'def f():\n    """One thing.\n\n    31 warps an SM."""\n', 4),
        ("a.py", 'say(f"{n} warps "\n    "an SM")\n', 1),
        ("a.py", "warps = an\nSM = 31\n", None),
        ("a.cu", "int x;  // 31 warps\n        // an SM\n", 1),
        ("a.cpp", 'fault("it waits for ever");\n', 1),
        ("a.cu", "int for_ever; for (;;) whence();\n", None),
        ("a.py", "# P pays at every turn\n", None),
    ],
)
def test_prose_is_read_and_code_is_not(path: str, text: str, line: int | None) -> None:
    assert len(prose(path, text)) == len(text)
    found = hits(path, text)
    assert bool(found) == bool(line) and all(hit.startswith(f"{path}:{line}: ") for hit in found)


def test_the_english_of_pages_comments_and_messages() -> None:
    read = files()
    folders = {Path(path).parts[0] for path in read}
    assert len(read) > 300 and {"README.md", "docs", "lessons", "site", "cuda_reference"} <= folders
    found = [hit for path in read for hit in hits(path, (ROOT / path).read_text())]
    assert not found, "\n".join(["write it otherwise:", *found])


@pytest.mark.long
def test_no_exception_is_kept_for_nothing() -> None:
    said = " ".join(" ".join(prose(path, (ROOT / path).read_text()).split()) for path in files()).lower()
    assert not [words for words in ALLOWED if words not in said]
