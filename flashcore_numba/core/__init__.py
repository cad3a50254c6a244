"""What all else speaks of: a validated problem, shapes, the float64 oracle, arrays and their device."""
