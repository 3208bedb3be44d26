"""The plug-in by whose id verifiers finds the environment: it takes modules without a dot in their name only."""

from integrations.verifiers.environment import DeltaMemEnv, DeltaMemHarness, DeltaMemTaskset, load_environment

__all__ = ["DeltaMemEnv", "DeltaMemHarness", "DeltaMemTaskset", "load_environment"]
