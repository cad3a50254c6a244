"""`python -m flashcore_numba.checks`: the campaign of random edits, see `campaign`."""

from .campaign import main

main()
