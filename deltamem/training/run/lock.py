"""One writer a folder: a lock that ends with the processes that hold it."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deltamem.errors import DeltaMemError

_LOOK_AGAIN_SECONDS = 0.2


@contextmanager
def locked(path: Path, *, patience: float) -> Iterator[int]:
    """Hold a lock; the kernel takes it back when the last process that has the file open ends, however it ends.

    Args:
        path: The lock file.
        patience: Seconds to wait for another holder.

    Yields:
        The file descriptor. A child process to which it is passed on holds the lock, too.

    Raises:
        DeltaMemError: If somebody else holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise DeltaMemError(
                        f"{path.parent}: another run is at work there; wait for it, end it, or choose another deltamem.out"
                    ) from None
                time.sleep(_LOOK_AGAIN_SECONDS)
        yield file.fileno()
