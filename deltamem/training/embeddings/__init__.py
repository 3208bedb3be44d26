"""Vectors for search and reward in rollouts: a store of the texts known beforehand, one owner a node for the rest."""
