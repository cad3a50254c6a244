"""Programs of several ranks in one process: what lesson 23 asks for, runs, counts and draws."""
