"""What the judge found: data for an autograder, text for a terminal, HTML for a notebook."""

import html
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

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


@dataclass(frozen=True)
class Item:
    """One input, property or other step of the check. `kind` is a key of `checks.runner.KINDS` when it
    failed."""

    name: str
    passed: bool
    kind: str = ""
    message: str = ""
    seconds: float = 0.0
    margin: float | None = None


@dataclass(frozen=True)
class GateResult:
    """A structural counter: `value` must not exceed `bar`; `before` is the stage below's, `right` the
    solution's."""

    what: str
    value: float
    before: float
    right: float
    bar: float
    passed: bool
    shape: str
    message: str = ""


@dataclass(frozen=True)
class CheckResult:
    """The verdict on one answer.

    `as_dict()` is what `flashcore check --lesson` writes as JSON: lesson (int), status (a key of STATUSES),
    passed (bool), message (the three parts below as one text), what (what is wrong, observable), where (the
    place, "" when none can be named), look (what to look at), line (of the answer, or of the file handed in;
    null), line_text, kind (a key of checks.runner.KINDS, "gate" or ""), items (list of {name, passed, kind,
    message, seconds, margin}), gates (list of {what, value, before, right, bar, passed, shape, message}),
    seconds (float), seed (int or null: repeats the random inputs), margin (the smallest allowed / error, null
    when nothing was compared), notes (list of str).
    """

    lesson: int
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

    @property
    def passed(self) -> bool:
        return self.status == "passed"

    @property
    def message(self) -> str:
        """What is wrong, where, and what to look at."""
        return "\n".join(part for part in (self.what, self.where, self.look) if part)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"passed": self.passed, "message": self.message}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "CheckResult":
        """The inverse of `as_dict`."""
        own = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        own["items"] = tuple(Item(**item) for item in data.get("items", ()))
        own["gates"] = tuple(GateResult(**gate) for gate in data.get("gates", ()))
        own["notes"] = tuple(data.get("notes", ()))
        return cls(**own)

    @property
    def heading(self) -> str:
        return f"Lesson {self.lesson:02d}: {HEADINGS[self.status]}"

    @property
    def summary(self) -> str:
        """One line of figures: what passed, the margin, the seconds, the seed."""
        if not self.items:
            return ""
        right = sum(item.passed for item in self.items)
        parts = [f"{right} of {len(self.items)} checks passed"]
        if self.margin is not None:
            parts.append(f"smallest allowed / error {self.margin:.3g}")
        parts.append(f"{self.seconds:.1f} s")
        if self.seed is not None:
            parts.append(f"seed {self.seed}")
        return ", ".join(parts)

    def __str__(self) -> str:
        lines = [self.heading, self.message]
        lines += [f"gate {'met' if g.passed else 'MISSED'}: {_gate_line(g)}" for g in self.gates]
        lines += [self.summary, *self.notes]
        return "\n".join(line for line in lines if line)

    __repr__ = __str__

    def render(self, console: Any) -> None:
        """Print on a rich console."""
        style = "green" if self.passed else "red"
        console.print(self.heading, style=f"bold {style}", markup=False)
        for part in (self.what, self.where, self.look):
            if part:
                console.print(part, markup=False, soft_wrap=True)
        for gate in self.gates:
            verdict = "gate met" if gate.passed else "gate MISSED"
            console.print(f"{verdict}: {_gate_line(gate)}", markup=False, soft_wrap=True)
        for line in (self.summary, *self.notes):
            if line:
                console.print(line, markup=False, soft_wrap=True, style="dim")

    def _repr_html_(self) -> str:
        mark = "&#10003;" if self.passed else "&#10007;"
        parts = [f"<strong>{mark} {html.escape(self.heading)}</strong>"]
        parts += [
            f"<p style='margin:.4em 0;white-space:pre-line'>{_code(part)}</p>"
            for part in (self.what, self.where, self.look)
            if part
        ]
        if self.gates:
            parts.append(_gate_table(self.gates))
        if self.items:
            parts.append(
                f"<details><summary>{html.escape(self.summary)}</summary>{_item_table(self.items)}</details>"
            )
        parts += [f"<p style='margin:.4em 0;opacity:.8'>{_code(note)}</p>" for note in self.notes]
        border = "solid" if self.passed else "double"
        style = f"border-left:6px {border} currentColor;padding:.2em 0 .2em .8em"
        return f"<div style='{style}'>{''.join(parts)}</div>"


def no_result(lesson: int, reply: Mapping[str, Any]) -> CheckResult:
    """The verdict on an answer whose process had none: `reply` is that of `process.run`."""
    if reply["status"] == "timeout":
        look = "Look for a loop that does not end, or that takes far more turns than there are keys."
    else:
        look = "Nothing in an exercise may end, kill or starve its process."
    notes = (f"It printed: {reply['printed'][:500]}",) if reply.get("printed") else ()
    return CheckResult(lesson, reply["status"], reply["why"], look=look, notes=notes)


def _gate_line(gate: GateResult) -> str:
    return (
        f"{gate.what} at {gate.shape}: {gate.value:,.6g} (the stage before {gate.before:,.6g}, "
        f"the solution {gate.right:,.6g}, the bar {gate.bar:,.6g})"
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
        + "".join(f"<td>{value:,.6g}</td>" for value in (g.value, g.before, g.right, g.bar))
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


def _item_table(items: tuple[Item, ...]) -> str:
    rows = "".join(
        f"<tr><th scope='row' style='text-align:left'>{html.escape(i.name)}</th>"
        f"<td>{'passed' if i.passed else 'failed'}</td>"
        f"<td>{'' if i.margin is None else f'{i.margin:.3g}'}</td></tr>"
        for i in items
    )
    heads = "".join(f"<th scope='col'>{name}</th>" for name in ("check", "result", "allowed / error"))
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
