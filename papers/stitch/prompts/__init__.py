"""What the language model is asked that labels steps and questions."""
