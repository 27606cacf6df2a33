"""Probe encoders with linguistic tasks; see `hf_capsule_mt/cli/probe.py`."""

import sys

from hf_capsule_mt.cli.probe import main

if __name__ == "__main__":
    sys.exit(main())
