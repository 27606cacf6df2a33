"""Scores sentences by COMET. `comet.py` starts it with a Python that has unbabel-comet; it imports nothing else.

Standard input is one JSON object: rows, model, batch_size, gpus. The last line of standard output is another: scores,
version. Exit code 3 says that unbabel-comet is not installed.
"""

import json
import sys
from pathlib import Path


def main() -> int:
    try:
        from importlib.metadata import version

        from comet import download_model, load_from_checkpoint
    except ImportError:
        return 3
    request = json.load(sys.stdin)
    name = request["model"]
    model = load_from_checkpoint(name if Path(name).is_file() else download_model(name))
    output = model.predict(request["rows"], batch_size=request["batch_size"], gpus=request["gpus"])
    print()
    print(json.dumps({"scores": list(map(float, output.scores)), "version": version("unbabel-comet")}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
