"""Score translations; see `hf_capsule_mt/cli/evaluate.py`, or `--help`."""

import sys

from hf_capsule_mt.cli.evaluate import main

if __name__ == "__main__":
    sys.exit(main())
