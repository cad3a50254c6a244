"""Is a learner's answer right? Screened, run in a process of its own, compared, explained."""
