"""One GRPO run: the child process with verl's trainer, its checkpoints, metrics, interruption."""
