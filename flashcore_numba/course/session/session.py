"""One lesson in a notebook or in Python: look, predict, write, check, watch, measure, explain."""

import dataclasses
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from cuda_reference.shown import shown
from flashcore_numba.core import gpu
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course import lessons
from flashcore_numba.course.book import weave
from flashcore_numba.course.evidence import MISSION, Evidence
from flashcore_numba.course.exercise import (
    is_cuda,
    region,
    source_name,
    source_text,
    starter_cell,
    starter_name,
)
from flashcore_numba.course.figures import Figure, draw, whose
from flashcore_numba.course.judge import process
from flashcore_numba.course.judge.answer_times import YOURS, own_labels
from flashcore_numba.course.judge.verdict import TICK, CheckResult, no_result
from flashcore_numba.course.session.card import Card, Code, Table
from flashcore_numba.course.session.journal import Journal, today
from flashcore_numba.course.spec import FunctionsExercise, Key, Lesson, Question
from flashcore_numba.records import artifact
from flashcore_numba.records.amounts import percent, provenance, short_us, times
from flashcore_numba.records.artifact import FORWARD
from flashcore_numba.run.executor import why_not_simulated
from flashcore_numba.stages import edited

GOOD, CLOSE = 1.10, 2.0  # factors between a prediction and the truth
MEASURE_SECONDS = 120.0
ALL_PASSED = "All lessons are passed."


class Session:
    """A lesson together with what its reader has done; made by `begin.begin`.

    Every method returns something that a notebook shows and that prints as text, with `as_dict()`. They raise
    ArgumentError for a wrong argument only.
    """

    def __init__(self, spec: Lesson, journal: Journal) -> None:
        self.lesson, self._journal = spec, journal
        self._live: dict[str, float] = {}

    # Look

    def picture(self) -> Figure:
        """What to see before the code, from the stage's own constants and not from the reader's kernel: who
        owns which rows, where the tiles live and the walk over the keys.
        """
        stage = edited.original(self.lesson.exercise.stage)
        return draw(self.lesson, self.lesson.picture, stage, whose(stage))

    # Predict

    def predict(self, **values: Any) -> Card:
        """Commit a number, or one of a question's choices, for each keyword; `...` is no answer yet.

        Without keywords it shows the questions. A later number is kept too, but the first one is scored.
        Raises ArgumentError for an unknown keyword or a value that is none, and then keeps nothing.
        """
        questions = {question.key: question for question in self._questions()}
        if unknown := sorted(set(values) - set(questions)):
            raise ArgumentError(f"{unknown[0]}: lesson {self.lesson.key} asks for {', '.join(questions)}")
        given = {key: value for key, value in values.items() if value is not ...}
        checked = {key: _prediction(questions[key], value) for key, value in given.items()}

        def commit(record: dict[str, Any]) -> None:
            for key, value in checked.items():
                made = record["predictions"].setdefault(key, [])
                if not made or made[-1] != value:
                    made.append(value)

        if checked:
            self._journal.change(self.lesson.key, commit)
        made = self._record()["predictions"]
        rows = tuple(
            (q.key, q.text + _choices(q), q.unit, _made(made.get(q.key, []), q)) for q in questions.values()
        )
        open_ = [key for key in questions if not made.get(key)]
        name = self.lesson.variable
        how = ", ".join(f"{key}=..." for key in questions)
        note = (
            f"Not answered: {', '.join(open_)}. Write `{name}.predict({how})` with your values."
            if open_
            else f"All committed. `{name}.measure()` compares them with the truth."
        )
        return Card(
            f"{self.lesson.called}: your predictions",
            (Table("Questions", ("name", "question", "unit", "yours"), rows), note),
            {"predictions": made, "open": open_},
            not open_,
        )

    # Write and check

    def write(self, code: str) -> Card:
        """Hand in the lines of the region, as `%%write` does. Raises ArgumentError when `code` is no text."""
        if not isinstance(code, str):
            raise ArgumentError(f"code: {type(code).__name__} is not text; the region's lines are accepted")
        self._change(answer=code)
        if not self._written():
            return Card(f"{self.lesson.called}: nothing is written yet", (), {"lines": 0})
        lines = len(code.strip().splitlines())
        return Card(
            f"{self.lesson.called}: your answer is kept ({lines} lines)",
            (f"`{self.lesson.variable}.check()` judges it.",),
            {"lines": lines},
        )

    def check(self, time_limit: float = process.DEFAULT_TIME_LIMIT) -> CheckResult:
        """Judge the last answer that was written, in a process of its own. time_limit: seconds."""
        reply = process.run(self._job("check", answer=self._answer()), time_limit)
        name = self.lesson.variable
        drawn = f"your {self.lesson.exercise.subject}"
        then = f"Next: `{name}.watch()` draws {drawn}, `{name}.measure()` scores your predictions."
        if after := self._following():
            then += f" Then comes {_named(after)}, in `{after.file}.ipynb`."
        return self.note(_verdict(self.lesson.key, reply), then)

    def note(self, result: CheckResult, then: str) -> CheckResult:
        """Keep an attempt in the journal; the result, which after a pass says what comes then."""

        def attempted(record: dict[str, Any]) -> None:
            record["attempts"] += result.status != "empty"
            if result.passed and record["passed"] is None:
                record["passed"] = today()

        self._journal.change(self.lesson.key, attempted)
        return dataclasses.replace(result, following=then) if result.passed else result

    def hints(self, layer: int | None = None) -> Card:
        """The hints up to `layer`, 1 first; without an argument those seen so far, at least the first.

        Raises ArgumentError for a layer that does not exist.
        """
        every = self.lesson.exercise.hints
        seen = self.hints_seen
        wanted = max(1, seen) if layer is None else layer
        if not isinstance(wanted, int) or isinstance(wanted, bool) or not 1 <= wanted <= len(every):
            raise ArgumentError(f"layer: {shown(layer)}; 1 to {len(every)} are accepted")
        if wanted > seen:
            self._change(hints=wanted)
        left = len(every) - wanted
        more = (
            f"`{self.lesson.variable}.hints({wanted + 1})` shows the next of {left} more."
            if left
            else "There are no more."
        )
        return Card(
            f"{self.lesson.called}: hint {wanted} of {len(every)}",
            (*(f"{n}. {text}" for n, text in enumerate(every[:wanted], 1)), more),
            {"layer": wanted, "layers": len(every), "hints": list(every[:wanted])},
        )

    @property
    def hints_seen(self) -> int:
        """How many of the lesson's hints have been shown, also in an earlier Python."""
        return self._record()["hints"]

    def source(self, solution: bool = False) -> Card:
        """The stage's file with line numbers; the region's lines only with `solution`."""
        exercise = self.lesson.exercise
        place, mark = region(exercise), "//" if is_cuda(exercise.file) else "#"
        lines = []
        for number, text in enumerate(source_text(exercise.file).splitlines(), 1):
            inside = place.first_line <= number <= place.last_line
            if not inside or solution:
                lines.append((number, text))
            elif number == place.first_line:
                count = place.last_line - place.first_line + 1
                lines.append((number, " " * place.indent + f"...  {mark} {count} lines: yours"))
        name = source_name(exercise.file)
        data = {"file": name, "lines": [list(line) for line in lines], "solution": bool(solution)}
        return Card(name, (Code(tuple(lines)),), data)

    # Watch and measure

    def watch(self, name: str | None = None) -> Figure | Card:
        """A figure of the reader's kernel where it runs, else of the stage itself; the title says which.

        name: one of the lesson's figures, the first by default. Raises ArgumentError for another name.
        """
        figures = self.lesson.figures
        if not figures:
            return Card(f"{self.lesson.called} has no figures", ())
        name = next(iter(figures)) if name is None else name
        if name not in figures:
            raise ArgumentError(f"name: {shown(name)}; lesson {self.lesson.key} has {', '.join(figures)}")
        if self._written():
            reply = process.run(self._job("watch", figure=name, answer=self._answer()))
            if reply["status"] != "done" or reply["whose"] == "stage":
                of = self.lesson.exercise
                why = reply.get("why") or reply["status"]
                print(f"Your {of.subject} is not drawn, {of.model} is. {why}")
            if reply["status"] == "done":
                return Figure.from_dict(reply["result"])
        stage = edited.original(self.lesson.exercise.stage)
        if why := why_not_simulated(stage.language):
            return Card(f"{self.lesson.called}: the figure {name} was not drawn", (why,))
        return draw(self.lesson, name, stage, whose(stage))

    def measure(self) -> Card:
        """Times: on a GPU of the reader's kernel, the stage and those before it, interleaved; without one the
        recorded run. Then the predictions are scored.
        """
        why_not = gpu.why_not()
        has_times = bool(self._labels())  # a warm-up has none
        parts, data = self._recorded() if why_not or not has_times else self._timed()
        if why_not and data["measured"]:
            parts.append(f"No GPU here ({why_not}), so these are the recorded times.")
        table, scores = self._scores(Evidence(self._live))
        if open_ := [q.key for q in self.lesson.questions if q.key not in (s["key"] for s in scores)]:
            what = "You made no prediction" + (f" for {', '.join(open_)}" if scores else "")
            table.append(f"{what}: `{self.lesson.variable}.predict(...)` first, and the truth is shown here.")
        return Card(
            f"{self.lesson.called}: what it takes, and your predictions",
            (*parts, *table),
            {**data, "scores": scores},
        )

    def recorded(self) -> Card:
        """The recorded times of the stage and of those beside it."""
        parts, data = self._recorded()
        return Card(f"{self.lesson.called}: recorded times", tuple(parts), data)

    def scores(self) -> Card:
        """The predictions made, beside what was counted, computed, and measured in the recorded run."""
        parts, scores = self._scores(Evidence())
        title = f"{self.lesson.called}: your predictions and the truth"
        return Card(title, tuple(parts), {"scores": scores})

    def _labels(self) -> list[str]:
        own = own_labels(self.lesson)
        return list(dict.fromkeys([*self.lesson.before, *own[:1], *self.lesson.after, *own[1:]]))

    def _comparison(self, yours: str) -> list[str]:
        """Which row the reader's kernel is to be compared with, where that is not the stage's default."""
        return [f"{yours} is to be compared with {label}." for label in own_labels(self.lesson)[1:]]

    def _recorded(self) -> tuple[list[Any], dict[str, Any]]:
        if not (labels := self._labels()):
            return [], {"measured": []}
        evidence, stage = Evidence(), edited.original(self.lesson.exercise.stage)
        of = stage.operation
        runs = [run for _, run in artifact.recorded(operation=of.name)] if of else []
        # A mask may be one that hides nothing: of a single row.
        if of and not any(artifact.find_shape(run, MISSION, mask) for run in runs for mask in (False, True)):
            untimed = f"Stage {stage.label} is not timed at {MISSION}: no run there is recorded."
            return [untimed], {"measured": []}
        record, shape = evidence.recorded(operation=of.name if of else FORWARD)
        entries = [evidence.entry(label) for label in labels]
        rows = [
            {
                "label": entry["label"],
                "us": entry["gpu_us"]["p50"],
                "share": entry["share_of_limit"],
                "error": entry["error"]["max"],
                "right": entry["error"]["right"],
            }
            for entry in entries
        ]
        where = f"{shape['shape']}, {provenance(record)}"
        table = _times_table(f"GPU time of a launch, recorded: {where}", rows)
        return [table, *self._comparison("The kernel of the exercise")], {
            "measured": rows,
            "recorded": True,
            "where": where,
        }

    def _timed(self) -> tuple[list[Any], dict[str, Any]]:
        has_kernel = not isinstance(self.lesson.exercise, FunctionsExercise)
        passed = has_kernel and self._record()["passed"]
        own = {"answer": self._answer()} if passed and self._written() else {}
        reply = process.run(self._job("measure", **own), MEASURE_SECONDS)
        if reply["status"] != "done" and own:
            first = reply.get("why") or reply["status"]
            reply = process.run(self._job("measure"), MEASURE_SECONDS)
            note = [f"Your kernel was not timed: {first}"]
        else:
            note = (
                []
                if own or not has_kernel
                else [f"Your kernel is timed too once it has passed `{self.lesson.variable}.check()`."]
            )
        if reply["status"] != "done":
            parts, data = self._recorded()
            return [*parts, f"Not timed on this GPU: {reply.get('why') or reply['status']}"], data
        rows, where = reply["result"]["rows"], reply["result"]["where"]
        self._live = {row["label"]: row["us"] for row in rows if row["right"]}
        table = _times_table(f"GPU time of a launch, measured now: {MISSION}, {where}", rows)
        note += self._comparison(YOURS.capitalize() if own else "The kernel of the exercise")
        return [table, *note], {"measured": rows, "recorded": False, "where": where}

    def _scores(self, evidence: Evidence) -> tuple[list[str | Table], list[dict[str, Any]]]:
        made = self._record()["predictions"]
        scores = [
            _score(question, made[question.key][0], question.truth(evidence))
            for question in self._questions()
            if made.get(question.key)
        ]
        parts: list[str | Table] = []
        if scores:
            rows = tuple(
                (s["key"], *(_shown(s[x], s["unit"]) for x in ("yours", "truth")), s["verdict"], s["source"])
                for s in scores
            )
            columns = ("question", "yours", "truth", "how far", "source")
            parts.append(Table("Your predictions", columns, rows))
            parts += [f"{s['key']}: {s['why']}" for s in scores]
        return parts, scores

    # Explain

    def explain(self, choice: Any = None) -> Card:
        """Say which resource limits the kernel; without an argument the choices.

        Raises ArgumentError for what is no choice.
        """
        explanation = self.lesson.explanation
        title = f"{self.lesson.called}: {explanation.text}"
        if choice is None or choice is ...:
            listed = "; ".join(f'`{self.lesson.variable}.explain("{name}")`' for name in explanation.feedback)
            return Card(title, (listed,), {"choices": list(explanation.feedback)})
        if choice not in explanation.feedback:
            accepted = ", ".join(f'"{name}"' for name in explanation.feedback)
            raise ArgumentError(f"choice: {shown(choice)}; accepted are {accepted}")
        self._change(explanations=[*self._record()["explanations"], choice])
        right = choice == explanation.right
        feedback = f"{choice}: {self._filled(explanation.feedback[choice])}"
        return Card(title, (feedback,), {"choice": choice, "right": right}, right)

    # Kill

    def kills(self) -> Card:
        """The wrong kernels of this lesson that the reader's inputs have killed, and those that are left."""
        killed = self._record()["killed"]
        given = self.lesson.given
        if not given:
            return Card(f"{self.lesson.called} has no wrong kernels to kill", ())
        rows = tuple((g.name, g.story, "killed" if g.name in killed else "alive") for g in given)
        left = [g.name for g in given if g.name not in killed]
        note = f"Left: {', '.join(left)}." if left else "None is left."
        return Card(
            f"{self.lesson.called}: wrong kernels",
            (Table("Kernels", ("name", "what its author thought", "state"), rows), note),
            {"killed": killed, "left": left},
            not left,
        )

    def kill(self, name: str, q: Any, k: Any, v: Any, causal: bool = False) -> Card:
        """Run the wrong kernel `name` and the stage on your arrays: killed when only the stage is right.

        q: [B, H, S_q, D], k and v: [B, H, S_k, D], or [S, D] each; finite in float16, at most 1x2x256x128.
        Raises ArgumentError for an unknown name or other arrays.
        """
        from flashcore_numba.course.judge import killing

        given = {g.name: g for g in self.lesson.given}
        if name not in given:
            raise ArgumentError(
                f"name: {shown(name)}; accepted are {', '.join(given) or 'none in this lesson'}"
            )
        outcome = killing.kill(self.lesson, given[name], q, k, v, causal)
        if outcome.killed:
            killed = self._record()["killed"]
            self._change(killed=list(dict.fromkeys([*killed, name])))
        return Card(
            f"{name}: {'killed' if outcome.killed else 'alive'}",
            outcome.sentences,
            {"name": name, "killed": outcome.killed, "sentences": list(outcome.sentences)},
            outcome.killed,
        )

    # Progress

    def next_command(self) -> str:
        """What comes after this lesson, on the command line."""
        after = self._following()
        return _step(after, self._journal.lesson(after.key)) if after else ALL_PASSED

    def _following(self) -> Lesson | None:
        """The first lesson after this one that is not passed; else the first before it; else None."""
        other = [spec for spec in lessons.EVERY.values() if spec.key != self.lesson.key]
        open_ = [spec for spec in other if not self._journal.lesson(spec.key)["passed"]]
        order = list(lessons.EVERY)
        after = [spec for spec in open_ if order.index(spec.key) > order.index(self.lesson.key)]
        return next(iter(after or open_), None)

    def progress(self) -> Card:
        """All lessons and what is done of them."""
        return overview(self._journal)

    def as_dict(self) -> dict[str, Any]:
        return self._card().as_dict()

    def __repr__(self) -> str:
        return repr(self._card())

    def _repr_html_(self) -> str:
        return self._card()._repr_html_()

    def _card(self) -> Card:
        record = self._record()
        state = _state(self.lesson, record)
        done = f"Done so far: {', '.join(f'{k} {v}' for k, v in state.items() if k != 'passed')}."
        if record["passed"]:
            done += f" Passed on {record['passed']}."
        return Card(f"{self.lesson.called}: {self.lesson.title}", (self.lesson.idea, done), {"state": state})

    def _record(self) -> dict[str, Any]:
        return self._journal.lesson(self.lesson.key)

    def _change(self, **values: Any) -> None:
        self._journal.change(self.lesson.key, lambda record: record.update(values))

    def _questions(self) -> list[Question]:
        return [
            dataclasses.replace(question, text=self._filled(question.text), why=self._filled(question.why))
            for question in self.lesson.questions
        ]

    def _filled(self, text: str) -> str:
        """A text of the lesson with its numbers, which are written as in the lessons: see `weave`."""
        return weave.plain(weave.woven(text, self.lesson.file))

    def _answer(self) -> str:
        return self._record()["answer"] or starter_cell(self.lesson)

    def _written(self) -> bool:
        """Whether something else than the starter was handed in."""
        answer = self._record()["answer"]
        return bool(answer) and answer.strip() != starter_cell(self.lesson).strip()

    def _job(self, name: str, **rest: Any) -> dict[str, Any]:
        return {"job": name, "lesson": self.lesson.key, **rest}


def overview(journal: Journal | None = None) -> Card:
    """A table of the lessons: predicted, attempts, hints, passed; and what comes next."""
    journal = journal or Journal()
    every = list(lessons.EVERY.values())
    records = {spec.key: journal.lesson(spec.key) for spec in every}
    states = {spec.key: _state(spec, records[spec.key]) for spec in every}
    rows = tuple((s.label, *_cells(states[s.key])) for s in every)
    open_ = next((spec for spec in every if not records[spec.key]["passed"]), None)
    note = _step(open_, records[open_.key]) if open_ else ALL_PASSED
    columns = ("lesson", "predicted", "attempts", "hints", "passed")
    data = {
        "lessons": [{"lesson": key, **state} for key, state in states.items()],
        "next": open_.key if open_ else None,
        "step": note,
    }
    return Card("The course", (Table("Lessons", columns, rows), note), data)


def _step(spec: Lesson, record: Mapping[str, Any]) -> str:
    """What to do next in a lesson that is not passed yet, as commands."""
    key, file = spec.key, starter_name(spec)
    if record["attempts"]:
        what = f"check again, `flashcore check {file} --lesson {key}`; `flashcore hint {key}` helps"
    elif any(not record["predictions"].get(question.key) for question in spec.questions):
        what = f"predict, `flashcore predict {key}`"
    else:
        what = f"write the file that `flashcore starter {key}` makes, {file}"
    return f"Next: {_named(spec)}: {what}. Or go on in JupyterLab: `flashcore lab {spec.number}`."


def _named(spec: Lesson) -> str:
    of = f"the {spec.name} of " if spec.name else ""
    return f"{of}lesson {spec.number:02d}, {spec.title}"


def _cells(state: Mapping[str, str | int]) -> tuple[str, ...]:
    """A row of the overview; a tick beside the date of a pass."""
    passed = state["passed"]
    return (*(str(value) for key, value in state.items() if key != "passed"),
            "-" if passed == "-" else f"{TICK} {passed}")  # fmt: skip


def _state(spec: Lesson, record: Mapping[str, Any]) -> dict[str, str | int]:
    predicted = sum(bool(record["predictions"].get(question.key)) for question in spec.questions)
    return {
        "predicted": f"{predicted} of {len(spec.questions)}",
        "attempts": record["attempts"],
        "hints": f"{record['hints']} of {len(spec.exercise.hints)}",
        "passed": record["passed"] or "-",
    }


def _verdict(key: Key, reply: Mapping[str, Any]) -> CheckResult:
    if isinstance(reply["result"], Mapping):
        return CheckResult.from_dict(reply["result"])
    return no_result(key, reply)


def _prediction(question: Question, value: Any) -> float | str:
    if question.choices:
        if not isinstance(value, str) or value not in question.choices:
            accepted = ", ".join(f'"{choice}"' for choice in question.choices)
            raise ArgumentError(f"{question.key}: {shown(value)}; accepted are {accepted}")
        return str(value)
    right = f"a number without a unit is accepted; it is taken as {question.unit}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ArgumentError(f"{question.key}: {shown(value)} is not a number; {right}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and number >= 0):
        raise ArgumentError(f"{question.key}: {shown(value)} is not finite and zero or above; {right}")
    return number


def _choices(question: Question) -> str:
    return f" ({', '.join(question.choices)})" if question.choices else ""


def _made(values: Sequence[float | str], question: Question) -> str:
    if not values:
        return "not answered"
    first, *later = (_shown(value, "") for value in values)
    return first + (f" (later {', '.join(later)}; the first one counts)" if later else "")


def _shown(value: float | str, unit: str) -> str:
    if isinstance(value, str):
        return value
    text = (
        f"{value:,.0f}" if float(value).is_integer() else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
    )
    if value == 1 and unit.endswith("s") and unit not in ("times", "µs"):
        unit = unit.removesuffix("s")
    return f"{text} {unit}".strip()


def _score(question: Question, yours: float | str, truth: float | str) -> dict[str, Any]:
    return {
        "key": question.key,
        "text": question.text,
        "unit": question.unit,
        "yours": yours,
        "truth": truth,
        "source": question.source,
        "why": question.why,
        **_distance(yours, truth),
    }


def _distance(yours: float | str, truth: float | str) -> dict[str, str]:
    if isinstance(yours, str) or isinstance(truth, str):
        right = yours == truth
        return {"grade": "good" if right else "far", "verdict": "right" if right else "another one"}
    if yours == truth:
        return {"grade": "good", "verdict": "exact"}
    if yours == 0 or truth == 0:
        return {"grade": "far", "verdict": "far: one of the two is zero"}
    factor, way = max(yours / truth, truth / yours), "high" if yours > truth else "low"
    if factor <= GOOD:
        return {"grade": "good", "verdict": f"good: within {max(1, math.ceil(100 * (factor - 1)))} %"}
    grade = "close" if factor <= CLOSE else "far"
    return {"grade": grade, "verdict": f"{grade}: {times(factor)} too {way}"}


def _times_table(caption: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """rows: label, us, share of the limit, error of the timed output, right."""
    first = rows[0]["us"]
    cells = tuple(
        (
            row["label"],
            short_us(row["us"]),
            times(first / row["us"]),
            percent(row["share"]),
            f"{row['error']:.1e}" if row["right"] else "wrong",
        )
        for row in rows
    )
    faster = f"times faster than {rows[0]['label']}"
    return Table(caption, ("kernel", "GPU time, µs", faster, "of the limit", "error"), cells)
