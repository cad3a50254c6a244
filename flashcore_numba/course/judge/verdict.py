"""What the judge found: data for an autograder, text for a terminal, HTML for a notebook."""

import html
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flashcore_numba.course.judge.layers import Layer
from flashcore_numba.course.spec import Key, called

STATUSES = {
    "passed": "right on every input, and every gate is met",
    "failed": "it runs, and something about it is wrong",
    "empty": "the region is still the starter's",
    "refused": "not run: no Python, a name that nothing defines, or something that an exercise may not use",
    "timeout": "stopped at the time limit",
    "crashed": "the process that ran it ended before it had a result",
}
HEADINGS = {
    "passed": "passed",
    "failed": "not yet",
    "empty": "not yet: the region is still empty",
    "refused": "not run",
    "timeout": "stopped: it does not end",
    "crashed": "stopped: it took its process down",
}


TICK, CROSS = "\u2713", "\u2717"
# White on these has a contrast of 5.1 and 6.6, and they stand out on a light and on a dark page.
GREEN, RED = "#1a7f37", "#b42318"


@dataclass(frozen=True)
class Refusal:
    """Why an answer is not run. `status` is empty or refused; `line` is one of the module, None if there is
    none to name.
    """

    status: str
    what: str
    line: int | None = None
    look: str = ""


@dataclass(frozen=True)
class Item:
    """One input, property or other step of the check. `kind` is a key of `checks.runner.KINDS` when it
    failed.
    """

    name: str
    passed: bool
    kind: str = ""
    message: str = ""
    seconds: float = 0.0
    margin: float | None = None


@dataclass(frozen=True)
class GateResult:
    """A structural counter: `value` must not exceed `bar`; `before` is the stage below's, None where
    there is none, `right` the solution's.
    """

    what: str
    value: float
    before: float | None
    right: float
    bar: float
    passed: bool
    shape: str
    message: str = ""


@dataclass(frozen=True)
class CheckResult:
    """The verdict on one answer.

    `as_dict()` is what `flashcore check --lesson` writes as JSON: lesson (int, or the name of a warm-up),
    status (a key of STATUSES), passed (bool), message (the parts below as one text), cause (a key of
    judge.causes.CAUSES, "" when none is known), certain (bool: the cause is proven, not a guess), why (the
    cause's sentence), what (what is wrong, observable), where (the place, "" when none can be named), look
    (what to look at), line (of the answer, or of the file handed in; null), line_text, kind (a key of
    checks.runner.KINDS, "gate", "search" or ""), items (list of {name, passed, kind, message, seconds,
    margin}), gates (list of {what, value, before, right, bar, passed, shape, message}), seconds (float), seed
    (int or null: repeats the random inputs), margin (the smallest allowed / error, null when nothing was
    compared), notes (list of str), following (after a pass, what comes next; ""), layer (of
    judge.layers.ORDER, the one that refused; "" after a pass), layers (those that looked, list of {name,
    seconds}), cubin (what the GPU's compiler gave the dearest kernel: {registers, spill_bytes, shared_bytes,
    warnings}; null where it did not come to that).
    """

    lesson: Key
    status: str
    what: str
    where: str = ""
    look: str = ""
    line: int | None = None
    line_text: str = ""
    kind: str = ""
    items: tuple[Item, ...] = ()
    gates: tuple[GateResult, ...] = ()
    seconds: float = 0.0
    seed: int | None = None
    margin: float | None = None
    notes: tuple[str, ...] = field(default=())
    following: str = ""
    cause: str = ""
    certain: bool = False
    why: str = ""
    layer: str = ""
    layers: tuple[Layer, ...] = ()
    cubin: Mapping[str, Any] | None = None

    @property
    def passed(self) -> bool:
        return self.status == "passed"

    @property
    def message(self) -> str:
        """A certain cause; what is wrong, where, and what to look at; a guess."""
        return "\n".join(self.parts)

    @property
    def parts(self) -> list[str]:
        """The paragraphs of the message: what is certain first, a guess last."""
        first, last = (self.why, "") if self.certain else ("", self.why)
        last = f"Perhaps this is the cause: {last}" if last else ""
        return [part for part in (first, self.what, self.where, self.look, last) if part]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"passed": self.passed, "message": self.message}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "CheckResult":
        """The inverse of `as_dict`."""
        own = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        own["items"] = tuple(Item(**item) for item in data.get("items", ()))
        own["gates"] = tuple(GateResult(**gate) for gate in data.get("gates", ()))
        own["notes"] = tuple(data.get("notes", ()))
        own["layers"] = tuple(Layer(**layer) for layer in data.get("layers", ()))
        return cls(**own)

    @property
    def heading(self) -> str:
        name = f"Lesson {self.lesson:02d}" if isinstance(self.lesson, int) else called(self.lesson)
        return f"{name}: {HEADINGS[self.status]}"

    @property
    def mark(self) -> str:
        return TICK if self.passed else CROSS

    @property
    def summary(self) -> str:
        """One line of figures: what passed, the margin, the seconds, the seed."""
        if not self.items:
            return ""
        right = sum(item.passed for item in self.items)
        parts = [f"{right} of {len(self.items)} checks passed"]
        if self.margin is not None and self.margin >= 1:
            parts.append(f"largest error {100 / self.margin:.3g} % of what is allowed")
        parts.append(f"{self.seconds:.1f} s")
        if self.seed is not None:
            parts.append(f"seed {self.seed}")
        return ", ".join(parts)

    def __str__(self) -> str:
        lines = [f"{self.mark} {self.heading}", self.message]
        lines += [f"gate {'met' if g.passed else 'MISSED'}: {_gate_line(g)}" for g in self.gates]
        lines += [self.summary, *self.notes, self.following]
        return "\n".join(line for line in lines if line)

    __repr__ = __str__

    def render(self, console: Any) -> None:
        """Print on a rich console."""
        style = "green" if self.passed else "red"
        mark = "" if console.options.ascii_only else f"{self.mark} "
        console.print(f"{mark}{self.heading}", style=f"bold {style}", markup=False)
        for part in self.parts:
            console.print(part, markup=False, soft_wrap=True)
        for gate in self.gates:
            verdict = "gate met" if gate.passed else "gate MISSED"
            console.print(f"{verdict}: {_gate_line(gate)}", markup=False, soft_wrap=True)
        for line in (self.summary, *self.notes):
            if line:
                console.print(line, markup=False, soft_wrap=True, style="dim")
        if self.following:
            console.print(self.following, markup=False, soft_wrap=True)

    def _repr_html_(self) -> str:
        parts = [f"<strong>{badge(f'{self.mark} {self.heading}', self.passed)}</strong>"]
        parts += [f"<p style='margin:.4em 0;white-space:pre-line'>{_code(part)}</p>" for part in self.parts]
        if self.gates:
            parts.append(_gate_table(self.gates))
        if self.items:
            parts.append(
                f"<details><summary>{html.escape(self.summary)}</summary>{_item_table(self.items)}</details>"
            )
        parts += [f"<p style='margin:.4em 0;opacity:.8'>{_code(note)}</p>" for note in self.notes]
        if self.following:
            parts.append(f"<p style='margin:.4em 0'>{_code(self.following)}</p>")
        border = "solid" if self.passed else "double"
        style = f"border-left:6px {border} {GREEN if self.passed else RED};padding:.2em 0 .2em .8em"
        return f"<div style='{style}'>{''.join(parts)}</div>"


def badge(text: str, passed: bool) -> str:
    """Text in white on green or red, as HTML: legible on a light page and on a dark one."""
    style = f"background:{GREEN if passed else RED};color:#fff;border-radius:.3em;padding:.1em .5em"
    return f"<span style='{style}'>{html.escape(text)}</span>"


def no_result(lesson: Key, reply: Mapping[str, Any]) -> CheckResult:
    """The verdict on an answer whose process had none: `reply` is that of `process.run`."""
    if reply["status"] == "timeout":
        look = "Look for a loop that does not end, or that takes far more turns than there are keys."
    else:
        look = "Nothing in an exercise may end, kill or starve its process."
    notes = (f"It printed: {reply['printed'][:500]}",) if reply.get("printed") else ()
    return CheckResult(lesson, reply["status"], reply["why"], look=look, notes=notes, layer=reply["layer"])


def _gate_line(gate: GateResult) -> str:
    before = "" if gate.before is None else f"the stage before {gate.before:,.6g}, "
    return (
        f"{gate.what} at {gate.shape}: {gate.value:,.6g} ({before}the solution {gate.right:,.6g}, "
        f"the bar {gate.bar:,.6g})"
    )


def _code(text: str) -> str:
    """Escaped, with `quoted` source as code."""
    pieces = html.escape(text, quote=False).split("`")
    if len(pieces) % 2 == 0:
        return "`".join(pieces)
    return "".join(f"<code>{p}</code>" if n % 2 else p for n, p in enumerate(pieces))


def _gate_table(gates: tuple[GateResult, ...]) -> str:
    rows = "".join(
        f"<tr><th scope='row' style='text-align:left'>{html.escape(g.what)}</th>"
        + "".join(f"<td>{_number(value)}</td>" for value in (g.value, g.before, g.right, g.bar))
        + f"<td>{'met' if g.passed else 'missed'}</td></tr>"
        for g in gates
    )
    heads = "".join(f"<th scope='col'>{name}</th>" for name in
                    ("counter", "yours", "stage before", "solution", "bar", "gate"))  # fmt: skip
    shapes = ", ".join(dict.fromkeys(g.shape for g in gates))
    return (
        f"<table><caption>Counters of your kernel at {html.escape(shapes)}</caption>"
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.6g}"


def _item_table(items: tuple[Item, ...]) -> str:
    rows = "".join(
        f"<tr><th scope='row' style='text-align:left'>{html.escape(i.name)}</th>"
        f"<td>{'passed' if i.passed else 'failed'}</td>"
        f"<td>{'' if not i.margin else f'{100 / i.margin:,.3g} %'}</td></tr>"
        for i in items
    )
    heads = "".join(
        f"<th scope='col'>{name}</th>" for name in ("check", "result", "error, of what is allowed")
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
