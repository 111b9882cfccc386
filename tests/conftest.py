"""What all tests have in common."""

from hypothesis import settings

# How long one example takes says more about what else the machine does.
settings.register_profile("formation", deadline=None)
settings.load_profile("formation")
