"""The numbers: lexical scores, ranks, intervals. Pure functions, no benchmark's data format."""
