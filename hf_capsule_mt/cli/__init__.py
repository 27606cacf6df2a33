"""The commands of `capsule-mt`: each file has `make_parser()` and `main(argv)`, which returns the exit code.

These files import only one another, `outputs.py` and `checkpoint_names.py` at the top, and everything else inside
functions. So `--help` and errors about missing input do not wait for PyTorch.
"""
