"""Search by proposals: candidates for the region of a lesson, judged before they run anywhere else."""
