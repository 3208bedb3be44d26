"""Runs of the benchmarks beside each other and beside published numbers: on the terminal and as one HTML page."""
