"""What the DeltaMem paper shows by varying one thing, as one command each: ``python -m eval sweep table4``."""
