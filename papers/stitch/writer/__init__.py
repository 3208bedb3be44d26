"""CAME-Bench as the paper of STITCH describes it (section 3), made offline: trajectories, questions, gold intents."""
