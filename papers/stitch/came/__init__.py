"""CAME-Bench, as ``python -m papers.stitch.writer`` makes it: trips and debates in which context tells similar facts apart."""
