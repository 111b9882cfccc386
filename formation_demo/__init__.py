"""What `formation demo` runs: a network of processes on this machine, and a real job on it."""
