"""Where a person's memory state lives and is searched. A bank is always bound to one owner."""

from deltamem.bank.snapshot import SnapshotBank

__all__ = ["SnapshotBank"]
