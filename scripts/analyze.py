"""Analyze a trained model on a test set; see `hf_capsule_mt/cli/analyze.py`, or `--help`."""

import sys

from hf_capsule_mt.cli.analyze import main

if __name__ == "__main__":
    sys.exit(main())
