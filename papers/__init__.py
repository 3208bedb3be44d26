"""Kindred systems of other papers, beside the core: it finds them by entry points and imports none."""
