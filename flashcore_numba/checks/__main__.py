"""`python -m flashcore_numba.checks`: the campaign of random edits, see `campaign`."""

import sys

from flashcore_numba.checks.campaign import main

sys.exit(main())
