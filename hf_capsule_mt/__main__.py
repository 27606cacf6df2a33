"""`python -m hf_capsule_mt` is `capsule-mt`; `accelerate launch -m hf_capsule_mt train RECIPE` needs it.

When Python looks for this file, `__init__.py` leaves out its imports.
"""

import sys

from hf_capsule_mt.cli.program import main

if __name__ == "__main__":
    sys.exit(main())
