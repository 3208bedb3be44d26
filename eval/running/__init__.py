"""What the commands of all benchmarks do alike: records in a folder, progress on the screen, the end of a run."""
