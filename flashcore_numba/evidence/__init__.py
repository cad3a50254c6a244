"""What a kernel moved and used: counts, Nsight Compute, what the compiler gave, and how they agree."""
