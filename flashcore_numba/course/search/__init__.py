"""A search for kernels whose operator and evaluator a learner writes."""
