"""What can be checked before a GPU is touched: ``python train.py +experiment=X preflight=true``."""
