"""Training with verl: the only package that imports verl, ray or vllm."""
