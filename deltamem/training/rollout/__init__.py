"""What happens while the policy is sampled: the episode as verl's agent loop, and what the trainer sees of it."""
