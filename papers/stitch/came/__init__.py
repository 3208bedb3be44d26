"""CAME-Bench: trips and debates in which context tells similar facts apart."""
