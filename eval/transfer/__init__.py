"""What a memory system keeps of conversations that no training data was made for, measured without a judge."""
