"""`python -m flashcore_numba` is the command `flashcore`."""

import sys

from .cli import main

sys.exit(main())
