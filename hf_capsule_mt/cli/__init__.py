"""The commands of the package: each file has `make_parser()` and `main(argv)`, which returns the exit code."""
