"""`python -m flashcore_numba.checks`: the campaign of random edits, see `campaign`."""

from flashcore_numba.checks.campaign import main

main()
