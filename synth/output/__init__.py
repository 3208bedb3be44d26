"""What is left of finished people: the data set's files, its data card, and a view in the terminal."""
