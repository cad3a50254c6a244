"""Two small exercises in stage 08, for tests of the machine that must not follow the lessons' own."""

from flashcore_numba.course import exercise
from flashcore_numba.course.judge import grade
from flashcore_numba.course.spec import Exercise, Explanation, Lesson, Wanted
from flashcore_numba.stages.edited import Edit, applied

__all__ = ["PRODUCT", "SOFTMAX", "answer", "edited", "verdict"]


def _lesson(task: Exercise) -> Lesson:
    return Lesson(8, "08_x", "title", "idea", task, (), Explanation("x", "y", {}), {})


PRODUCT = _lesson(
    Exercise(
        stage=8,
        file="stage08_wmma_full.cu",
        first="wmma::fragment<wmma::accumulator, 16, 16, 16, float> o;",
        last="wmma::store_matrix_sync(o_smem, o, O_LD, wmma::mem_row_major);",
        task="O += P V.",
        given={
            "o_smem": "float*, shared",
            "p_smem": "const element*, shared",
            "v_smem": "const element*, shared",
        },
        wanted=(Wanted("o_smem[threadIdx.x % 16 * O_LD]", "the first column of O"),),
        hints=("a", "b"),
    )
)
SOFTMAX = _lesson(
    Exercise(
        stage=8,
        file="stage08_wmma_full.cu",
        first="float p[4];",
        last="__syncthreads();  // every warp has left K, V, P and O before the next tile overwrites them",
        task="Softmax and P V.",
        given={"s_smem": "float*, shared"},
        wanted=(Wanted("m", "the maximum so far"), Wanted("l", "the lane's part of the sum")),
        hints=("a", "b"),
        advice={"race": "This exercise's own advice."},
    )
)


def edited(lesson: Lesson, *edits: tuple[str, str]) -> str:
    """The solution's lines with replacements, each of a text that occurs once."""
    region = exercise.region(lesson.exercise).text
    return applied(region, [Edit(old, new) for old, new in edits], "the region")


def answer(lesson: Lesson, *edits: tuple[str, str]) -> exercise.Answer:
    return exercise.answer_in_cell(lesson, edited(lesson, *edits))


def verdict(lesson: Lesson, *edits: tuple[str, str]) -> grade.CheckResult:
    return grade.check(lesson, answer(lesson, *edits))
