"""A model of a million parameters that learns the task on two CPU cores: architecture, tokenizer, teacher, warm start."""
