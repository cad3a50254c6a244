"""A lesson's calls, in Python and in IPython: what they keep, what they show, what they refuse."""

import json
import subprocess
import sys

import numpy as np
import pytest
from matrix import few

from flashcore_numba.branches.find import find
from flashcore_numba.core import gpu
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course import exercise, lesson, lessons
from flashcore_numba.course.evidence import Evidence
from flashcore_numba.course.figures import Figure
from flashcore_numba.course.judge import process
from flashcore_numba.course.judge.answer_times import timed_labels
from flashcore_numba.course.session.card import Card, Table
from flashcore_numba.course.session.session import overview
from flashcore_numba.stages.runs import Run

NUMBERS = sorted(lessons.LESSONS)
SLOW = (9, 11, 22, 24)  # what they ask for is counted, or searched for
by_quick_number = pytest.mark.parametrize(
    "number", few(NUMBERS, *(each for each in NUMBERS if each not in SLOW))
)
UNTIMED = (22, 25)  # whose stage was not timed at the mission shape


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "flashcore"


@pytest.fixture
def recorded(monkeypatch):
    """Measure as on a machine without a GPU."""
    monkeypatch.setattr(gpu, "why_not", lambda: "no GPU in this test")


def truth(question):
    return question.truth(Evidence())


def good(question):
    return truth(question) if question.choices else truth(question) * 1.05


@by_quick_number
def test_every_question_has_a_truth_and_is_scored(number, recorded):
    course = lesson(number)
    questions = course.lesson.questions
    assert len(questions) >= 2
    course.predict(**{q.key: good(q) for q in questions})
    scores = course.measure().data["scores"]
    assert [s["key"] for s in scores] == [q.key for q in questions]
    assert all(s["grade"] == "good" for s in scores), scores
    assert all(s["source"] in ("counted", "measured", "computed") and s["why"] for s in scores)


@by_quick_number
def test_numbers_in_texts_are_filled_in(number, recorded):
    """A comment that names no count or time raises; none is left in what the reader sees."""
    course = lesson(number)
    shown = [course.predict(**{q.key: good(q) for q in course.lesson.questions}), course.measure()]
    shown += [course.explain(choice) for choice in course.lesson.explanation.feedback]
    assert not any("<!--" in repr(card) or "<!--" in json.dumps(card.as_dict()) for card in shown)


def test_numbers_in_texts_are_the_counted_and_measured_ones(recorded):
    text = repr(lesson(4).predict()) + repr(lesson(4).explain("memory"))
    assert f"{Evidence().us(3):.0f} µs" in text and f"{Evidence().limit('memory'):.2f} µs" in text


@by_quick_number
def test_nothing_filled_in_shows_and_does_not_raise(number, recorded):
    course = lesson(number)
    questions = course.lesson.questions
    shown = course.predict(**{q.key: ... for q in questions})
    assert shown.passed is False and shown.data["open"] == [q.key for q in questions]
    measured = course.measure()
    text = repr(measured)
    assert "You made no prediction" in text and not measured.data["scores"]
    if number:
        assert ("not timed at" if number in UNTIMED else "NVIDIA H200") in text
        assert course.lesson.explanation.text
    assert course.explain().data["choices"] == list(course.lesson.explanation.feedback)
    for shown in (course, course.predict(), measured, course.hints(), course.source(), course.progress()):
        json.dumps(shown.as_dict())
        assert shown._repr_html_().count("<table") == repr(shown).count("┏")


def test_the_first_prediction_is_scored(recorded):
    course = lesson(2)
    question = next(q for q in course.lesson.questions if not q.choices)
    right = truth(question)
    course.predict(**{question.key: 20 * right})
    course.predict(**{question.key: 20 * right})
    again = lesson(2)
    again.predict(**{question.key: right})
    assert again._record()["predictions"][question.key] == [20 * right, right]
    (score,) = again.measure().data["scores"]
    assert score["yours"] == 20 * right and score["verdict"] == "far: 20.0x too high"
    assert "the first one counts" in again.predict()._repr_html_()


@pytest.mark.parametrize("value", ["3.2 us", "3", None, True, float("nan"), float("inf"), -1, [3], 1j])
def test_what_is_no_number_is_refused_and_nothing_kept(value):
    course = lesson(2)
    first, second = [q for q in course.lesson.questions if not q.choices][:2]
    with pytest.raises(ArgumentError, match=rf"{second.key}: .*a number without a unit is accepted"):
        course.predict(**{first.key: 3, second.key: value})
    assert course._record()["predictions"] == {}
    with pytest.raises(ArgumentError, match=r"nonsense: lesson 2 asks for "):
        course.predict(nonsense=3)


@pytest.mark.long
def test_write_check_and_the_rest_of_a_lesson(recorded):
    course = lesson(4)
    assert course.check().status == "empty" and course._record()["attempts"] == 0
    starter = course.write(exercise.starter_cell(course.lesson))
    assert "nothing is written yet" in repr(starter)
    course.write("scores[b, h, j, row] = ")
    assert course.check().status == "refused"
    course.write(exercise.region(course.lesson.exercise).text)
    result = lesson("4").check()  # a kernel that was restarted in between
    assert result.passed, result
    record = course._record()
    assert record["attempts"] == 2 and record["passed"]
    figure = course.watch()
    assert isinstance(figure, Figure) and "your kernel" in figure.title
    assert overview().data["lessons"][4]["passed"] == record["passed"]
    assert overview().data["next"] == 0


@pytest.mark.long
def test_a_kernel_that_does_not_run_is_not_drawn(capsys):
    course = lesson(2)
    course.write("not Python at all")
    figure = course.watch()
    assert isinstance(figure, Figure) and "stage 02" in figure.title
    assert "Your kernel is not drawn" in capsys.readouterr().out


@pytest.mark.long
def test_a_time_limit_becomes_a_verdict():
    course = lesson(2)
    course.write("while True:\n    pass")
    result = course.check(time_limit=5)
    assert not result.passed and result.status in ("timeout", "failed", "refused"), result


def test_hints_go_from_layer_to_layer():
    course = lesson(3)
    every = course.lesson.exercise.hints
    assert course.hints().data["hints"] == [every[0]]
    assert course.hints(2).data["hints"] == list(every[:2])
    assert course.hints().data["layer"] == 2 and course._record()["hints"] == 2
    for wrong in (0, len(every) + 1, "1", True, 1.5):
        with pytest.raises(ArgumentError, match=rf"layer: .*1 to {len(every)} are accepted"):
            course.hints(wrong)


@pytest.mark.parametrize("number", NUMBERS)
def test_source_hides_the_region(number):
    course = lesson(number)
    place = exercise.region(course.lesson.exercise)
    hidden, whole = repr(course.source()), repr(course.source(solution=True))
    secret = max((line.strip() for line in place.text.splitlines()), key=len)
    assert secret in whole and secret not in hidden
    numbers = [n for n, _ in course.source().data["lines"]]
    assert (
        numbers[0] == 1 and place.first_line in numbers and place.last_line not in numbers[: place.last_line]
    )


@by_quick_number
def test_explain_has_one_right_choice(number):
    course = lesson(number)
    explanation = course.lesson.explanation
    right = [choice for choice in explanation.feedback if course.explain(choice).passed]
    assert right == [explanation.right]
    assert course._record()["explanations"] == list(explanation.feedback)
    with pytest.raises(ArgumentError, match=r"choice: 'magic'; accepted are "):
        course.explain("magic")


def test_kill_needs_an_input_that_only_the_given_kernel_fails(rng):
    course = lesson(5)
    (name, *_) = names = [g.name for g in course.lesson.given]
    q, k, v = rng.standard_normal((3, 64, 64))
    assert course.kill(name, q, k, v).passed is False
    assert course.kills().data["left"] == names
    with pytest.raises(ArgumentError, match=r"name: 'x'; accepted are "):
        course.kill("x", q, k, v)
    for wrong, says in [
        (np.full((64, 64), np.nan), "itself must be finite"),
        (np.full((64, 64), 7e4), "beyond 65504"),
        (np.zeros((300, 64)), "at most 1x2x256x128"),
        (np.zeros(64), r"\[B, H, S, D\] or \[S, D\] is accepted"),
        ("text", "is no array of numbers"),
        (np.zeros((64, 32)), "k has head dimension 64: q has 32"),
    ]:
        with pytest.raises(ArgumentError, match=says):
            course.kill(name, wrong, k, v)


def test_unknown_lessons_and_figures_are_named():
    for wrong in (99, "x", 2.5, True, None):
        with pytest.raises(ArgumentError, match=r"lesson .*: accepted are 0 "):
            lesson(wrong)
    with pytest.raises(ArgumentError, match=r"name: 'x'; lesson 2 has "):
        lesson(2).watch("x")
    with pytest.raises(ArgumentError, match=r"code: int is not text"):
        lesson(2).write(3)


def test_a_gpu_that_fails_gives_the_recorded_run(monkeypatch):
    monkeypatch.setattr(gpu, "why_not", lambda: None)
    monkeypatch.setattr(
        process, "run", lambda *a, **b: {"status": "crashed", "why": "It broke.", "result": None}
    )
    shown = repr(lesson(2).measure())
    assert "Not timed on this GPU: It broke." in shown and "recorded" in shown


def test_live_times_answer_the_questions(monkeypatch):
    course = lesson(5)
    rows = [
        {"label": "05 online_softmax", "us": 10.0, "share": 0.5, "error": 1e-4, "right": True},
        {"label": "your kernel", "us": 20.0, "share": 0.25, "error": None, "right": False},
    ]
    reply = {"status": "done", "result": {"rows": rows, "where": "a GPU"}}
    monkeypatch.setattr(gpu, "why_not", lambda: None)
    monkeypatch.setattr(process, "run", lambda *a, **b: reply)
    shown = course.measure()
    assert "measured now" in repr(shown) and "wrong" in repr(shown)
    assert course._live == {"05 online_softmax": 10.0}


def test_a_kernel_is_set_beside_the_variant_that_it_is(recorded):
    """The exercise of lesson 12 writes the variant `large`, not what runs by default."""
    beside = {number: lesson(number).measure() for number in (10, 12, 13)}
    for number, label in ((10, "10 pipeline 3"), (12, "12 large"), (13, "13 two_splits")):
        us = {row["label"]: row["us"] for row in beside[number].data["measured"]}
        assert us[label] == Evidence().us(label) and us[find(number).label] == Evidence().us(number)
        assert f"is to be compared with {label}." in repr(beside[number])
    for number in NUMBERS[1:]:
        chosen = lessons.find(number)
        run = Run(find(chosen.exercise.stage), chosen.exercise.variant)
        assert run.label in timed_labels(chosen)


def test_what_a_gpu_times_says_which_row_is_the_learners_variant(monkeypatch):
    course = lesson(12)
    row = {"us": 10.0, "share": 0.5, "error": 1e-4, "right": True}
    reply = {"status": "done", "result": {"rows": [{"label": "12 large"} | row], "where": "a GPU"}}
    monkeypatch.setattr(gpu, "why_not", lambda: None)
    monkeypatch.setattr(process, "run", lambda *a, **b: reply)
    assert "The kernel of the exercise is to be compared with 12 large." in repr(course.measure())
    course._change(passed="today", answer="an answer")
    assert "Your kernel is to be compared with 12 large." in repr(course.measure())


def test_cards_escape_what_they_show():
    card = Card("a < b", ("`x` & <script>", Table("c", ("n", "v"), (("<i>", "1.5"),))))
    page = card._repr_html_()
    assert "<script>" not in page and "<i>" not in page and "<code>x</code> &amp;" in page
    assert '<th scope="col"' in page and '<th scope="row"' in page and "<caption" in page


PROGRAM = """
from IPython.testing.globalipapp import start_ipython
shell = start_ipython()
from flashcore_numba.course import lesson
course = lesson(3)
for number, text in [("", "first"), ("3", "second"), ("4", "other"), ("x", "third")]:
    shell.run_cell(f"%%write {number}\\n{text}\\n")
print("KEPT", repr(course._record()["answer"]), repr(lesson(4)._record()["answer"]))
"""


@pytest.mark.long
def test_the_write_magic_keeps_a_cell(tmp_path):
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert "KEPT 'second\\n' 'other\\n'" in ran.stdout, ran.stdout + ran.stderr
    assert "a lesson's number is accepted" in ran.stdout + ran.stderr
