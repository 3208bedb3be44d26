"""A child process that does not outlive its parent."""

from __future__ import annotations

import os
import signal
import threading
import time

_ORDERLY_SECONDS = 20.0
"""How long the end after SIGTERM may take."""


def end_with_parent() -> None:
    """End this process group soon after the parent has ended, however that happened.

    The parent holds the other end of this process's standard input, and this process leads its group.
    """

    def watch() -> None:
        # Nothing is ever written: this returns when the kernel closes the parent's end.
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_ORDERLY_SECONDS)
        os.killpg(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent", daemon=True).start()
