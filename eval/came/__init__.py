"""CAME-Bench, as ``python -m synth came`` makes it: trips and debates in which context tells similar facts apart."""
