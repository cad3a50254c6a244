"""A look at functions that an exercise asks for before they run: are they there, do they keep to it?"""

import ast
import difflib

from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.judge import screen_python
from flashcore_numba.course.judge.verdict import Refusal
from flashcore_numba.course.spec import FunctionsExercise, Lesson


def screen(lesson: Lesson, answer: Answer) -> Refusal | None:
    """The first thing that keeps an answer from being run, or None.

    Raises ArgumentError for a whole file without the exercise's markers.
    """
    if answer.first is None:
        raise ArgumentError(
            f"{answer.file}: no file of lesson {lesson.key}, it has not the lines `# <exercise>` and "
            f"`# </exercise>`; `flashcore starter {lesson.key}` writes one to start from"
        )
    try:
        tree = ast.parse(answer.text)
    except SyntaxError as error:
        return screen_python.syntax(answer, error)
    except (RecursionError, MemoryError):
        return Refusal("refused", "The answer nests too deeply for Python's own parser.")
    statements = [node for node in tree.body if answer.inside(node.lineno)]
    if screen_python.is_empty(statements, answer):
        return Refusal("empty", "The region is still empty.", answer.first, "Write the lines of the task.")
    scope = statements if answer.is_cell else [tree]
    refusal = screen_python.forbidden(lesson, scope)
    return refusal or _functions(lesson, statements) or _undefined(answer, tree, statements)


def _functions(lesson: Lesson, statements: list[ast.stmt]) -> Refusal | None:
    """A function that is missing, or takes something else."""
    assert isinstance(lesson.exercise, FunctionsExercise)
    found = {node.name: node for node in statements if isinstance(node, ast.FunctionDef)}
    for name, parameters in lesson.exercise.functions.items():
        form = f"def {name}({', '.join(parameters)}):"
        if name not in found:
            return Refusal("refused", f"There is no function `{name}`.", None, f"It begins with `{form}`.")
        takes = found[name].args
        most = len(takes.posonlyargs) + len(takes.args)
        least = most - len(takes.defaults)
        needed = [
            arg for arg, value in zip(takes.kwonlyargs, takes.kw_defaults, strict=True) if value is None
        ]
        if needed or not (least <= len(parameters) and (takes.vararg or len(parameters) <= most)):
            what = f"`{name}` is called with {' and '.join(f'`{p}`' for p in parameters)}."
            return Refusal("refused", what, found[name].lineno, f"It begins with `{form}`.")
    return None


def _undefined(answer: Answer, tree: ast.Module, statements: list[ast.stmt]) -> Refusal | None:
    """A name that nothing defines, anywhere in the file."""
    defined = {name for node in ast.walk(tree) for name in screen_python.stored_by(node)}
    defined |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}
    for node in (n for statement in statements for n in ast.walk(statement)):
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
            continue
        if node.id not in defined | screen_python.BUILTINS:
            near = difflib.get_close_matches(node.id, sorted(defined), 1, 0.7)
            look = f"Did you mean `{near[0]}`?" if near else ""
            return Refusal("refused", f"`{node.id}` is not defined.", node.lineno, look)
    return None
