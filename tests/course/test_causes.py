"""Causes: every one that a verdict can state has a sentence, and the parts of a verdict keep their order."""

from flashcore_numba.checks.mistakes import mistakes
from flashcore_numba.course.judge.causes import CAUSES, OUTPUTS, stated
from flashcore_numba.course.judge.verdict import CheckResult
from flashcore_numba.course.lessons import EVERY


def test_every_cause_that_can_be_stated_has_its_sentence():
    assert {mistake.cause for mistake in mistakes()} == set(OUTPUTS)
    exercises = [lesson.exercise for lesson in EVERY.values()]
    named = {slip.cause for exercise in exercises for slip in exercise.slips}
    named |= {gate.cause for exercise in exercises for gate in exercise.gates if gate.cause}
    assert named <= set(CAUSES)


def test_a_slip_is_of_a_value_that_the_exercise_compares():
    for lesson in EVERY.values():
        compared = {wanted.expression for wanted in lesson.exercise.wanted}
        assert {slip.of for slip in lesson.exercise.slips} <= compared


def test_a_certain_cause_comes_first_and_a_guess_last():
    result = CheckResult(5, "failed", "what", "where", "look")
    assert stated(result, "K for V").message.splitlines() == [CAUSES["K for V"], "what", "where", "look"]
    guess = stated(result, "K for V", certain=False)
    assert guess.message.splitlines()[:3] == ["what", "where", "look"]
    assert guess.message.splitlines()[3].startswith("Perhaps")
    assert str(guess).endswith(f"{guess.heading}\n{guess.message}")
