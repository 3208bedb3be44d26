"""What is left of finished people: the data set's files, its data card and report, and a view in the terminal."""

from synth.output.dataset import write_dataset

__all__ = ["write_dataset"]
