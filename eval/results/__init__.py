"""What a benchmark leaves on disk: records that are written as they are made, what they were made with, and summaries."""
