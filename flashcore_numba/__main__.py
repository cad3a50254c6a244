"""`python -m flashcore_numba` is the command `flashcore`."""

import sys

from flashcore_numba.cli import main

sys.exit(main())
