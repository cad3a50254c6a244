"""`python -m course.wrong_answers 4 no_second_barrier`, in `tests/`: that wrong answer, for a notebook."""

import sys
import textwrap

from flashcore_numba.course import lessons

from .. import kill_table
from . import text_of

lesson = lessons.find(sys.argv[1])
named = {wrong.name: wrong for wrong in kill_table.wrongs(lesson.key)}
if sys.argv[2:] == [] or sys.argv[2] not in named:
    sys.exit(f"wrong answers of lesson {lesson.key}: {', '.join(named)}")
print(f"%%write {lesson.key}\n{textwrap.dedent(text_of(named[sys.argv[2]], lesson.exercise))}")
