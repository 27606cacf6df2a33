"""Show routing in a browser; see `hf_capsule_mt/cli/demo.py`, or `--help`."""

import sys

from hf_capsule_mt.cli.demo import main

if __name__ == "__main__":
    sys.exit(main())
