"""Write a report; see `hf_capsule_mt/cli/report.py`, or `--help`."""

import sys

from hf_capsule_mt.cli.report import main

if __name__ == "__main__":
    sys.exit(main())
