"""Synthetic people with target operations: persona -> profile -> events -> memories -> dialogue (paper, section 3.2)."""
