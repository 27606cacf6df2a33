"""Make the shortlist of a model: `hf_capsule_mt/cli/make_shortlist.py`."""

import sys

from hf_capsule_mt.cli.make_shortlist import main

if __name__ == "__main__":
    sys.exit(main())
