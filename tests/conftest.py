"""Settings of all tests."""

from hypothesis import settings

# Machines that run tests are noisy: a slow example says nothing about the code.
settings.register_profile("deltamem", deadline=None)
settings.load_profile("deltamem")
