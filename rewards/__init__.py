"""Rewards: how far the predicted memory state is from the target state (paper, section 3.3)."""
