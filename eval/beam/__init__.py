"""BEAM (arXiv 2510.27246): 100 chats of 100 thousand to 10 million tokens, 20 questions on each, ten abilities."""
