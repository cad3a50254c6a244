"""Where a stage runs: executors on a GPU, the simulator, the CPU, the compiler alone; plans, scratch."""
