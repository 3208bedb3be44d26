"""Memory systems under test, all behind the protocol of `eval.systems.base`."""
