"""Large simulated networks that run the shipped peer, and what they measure."""
