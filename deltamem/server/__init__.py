"""The server: one process that keeps the memory of many owners for applications that speak HTTP."""
