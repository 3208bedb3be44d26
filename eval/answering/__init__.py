"""From retrieved memories to judged answers: answerers, judges, their prompts, and the probes that measure judges."""
