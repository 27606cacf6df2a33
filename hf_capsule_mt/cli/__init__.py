"""The commands of `capsule-mt`: each file has `make_parser()` and `main(argv)`, which returns the exit code.

These files import only one another and `outputs.py` at the top, and everything else inside functions. So `--help`
does not wait for PyTorch.
"""
