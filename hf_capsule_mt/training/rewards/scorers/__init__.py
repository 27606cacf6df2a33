"""What computes rewards, in files that worker processes load without the package and without PyTorch."""
