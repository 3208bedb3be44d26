"""The command `deltamem`: what a `MemoryManager` offers, for the shell. See `docs/command.md`."""
