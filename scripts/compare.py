"""Compare systems; see `hf_capsule_mt/cli/compare.py`, or `--help`."""

import sys

from hf_capsule_mt.cli.compare import main

if __name__ == "__main__":
    sys.exit(main())
