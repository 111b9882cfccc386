"""Reading what a worker's call returned, without running what it says."""
