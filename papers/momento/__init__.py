"""Momento (arXiv 2606.00832): an agent with 26 tools of a restaurant service, which has to remember earlier sessions."""
