"""What the figures in docs/ were measured with. Each prints both sides of its comparison."""
