"""LongMemEval (arXiv 2410.10813): 500 questions, each with a history of its own."""
