"""verl on a CPU: a platform, the FSDP engine and a rollout for small models.

verl imports this package when ``VERL_USE_EXTERNAL_MODULES=deltamem.training.verl_cpu``. It registers itself only when
``VERL_PLATFORM=cpu`` besides: on a cluster verl's search for an accelerator must never fall through to it.
"""

from __future__ import annotations

import os

THREADS = "DELTAMEM_CPU_THREADS"
"""Environment variable: threads of the trainer and of the sampler, which take turns."""


def thread_count() -> int:
    """How many threads the computing processes may use."""
    return int(os.environ.get(THREADS, "1"))


if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    from deltamem.training.verl_cpu.platform import register

    register()
