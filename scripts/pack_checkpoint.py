"""Pack a trained model for a repository: `hf_capsule_mt/cli/pack_checkpoint.py`."""

import sys

from hf_capsule_mt.cli.pack_checkpoint import main

if __name__ == "__main__":
    sys.exit(main())
