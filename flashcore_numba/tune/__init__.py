"""Search: which configuration of a stage is fastest for a problem, and what the compiler drops before."""
