"""The task of DeltaMem as an environment of the package verifiers, for prime-rl, ``vf-eval`` and others that run such."""
