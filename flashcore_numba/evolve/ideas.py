"""What to try: an island follows one idea, and an idea has its words for a model and its operators.

The idea is the macro level of a search, the numbers that an edit changes are the micro level.
"""

from collections.abc import Mapping
from pathlib import Path

from flashcore_numba.course.spec import Lesson
from flashcore_numba.stages.files import is_cuda

PROMPTS = Path(__file__).with_name("prompts")
IDEAS: Mapping[str, tuple[str, ...]] = {
    "waits": ("move_wait", "delete_wait", "duplicate_wait", "weaken_barrier"),
    "numbers": ("flip_count", "change_count", "change_number", "change_bound", "toggle_unroll"),
    "order": (
        *("swap_statements", "hoist_statement", "hoist_bound", "delete_statement", "duplicate_statement"),
    ),
    "memory": (
        *("change_slot", "change_stride", "change_register", "change_index", "change_type"),
        "exchange_keys_and_values",
    ),
    "arithmetic": (
        *("change_operator", "change_comparison", "change_condition", "change_name", "change_function"),
        "swap_arguments",
    ),
    "spelling": (
        *("rename_local", "swap_factors", "swap_terms", "flip_comparison", "spell_out_update"),
        *("prefix_increment", "add_braces", "add_comment"),
    ),
}
"""The ideas in the order in which islands take them, with the operators of `edits` that belong to each. What
an idea asks of a model is in prompts/ideas/NAME.txt.
"""


def of_island(island: int) -> str:
    """The idea that an island follows."""
    return [*IDEAS][island % len(IDEAS)]


def system_message(lesson: Lesson, idea: str) -> str:
    """What a model is told before it sees a region: the lesson's task and names, and the idea."""
    exercise = lesson.exercise
    gates = (f"- {gate.what}: the course's own lines have {gate.right:g}" for gate in exercise.gates)
    given = "\n".join(f"- {name}: {meaning}" for name, meaning in exercise.given.items())
    return (PROMPTS / "system.txt").read_text().format(
        file=exercise.file if is_cuda(exercise.file) else f"{exercise.file}.py",
        task=exercise.task.strip(),
        given=given,
        gates="\n".join(gates),
        idea=(PROMPTS / "ideas" / f"{idea}.txt").read_text().strip(),
    )  # fmt: skip


def language(lesson: Lesson) -> str:
    """How a fence of Markdown names the language of the lesson's region."""
    return "cuda" if is_cuda(lesson.exercise.file) else "python"
