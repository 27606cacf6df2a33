"""Keys and passwords that somebody has left in a configuration, which must not be given away with a checkpoint."""

import json
import re
from pathlib import Path
from typing import Any

# By name, where the value is a text; `bos_token` and the like are none.
NAME = re.compile(
    r"(^|_)(secret|password|passwd|passphrase|credentials?|api_?key|access_?key|secret_?key|private_?key|auth"
    r"|authorization|bearer|cookies?|webhooks?|(wandb|comet|neptune|clearml|mlflow|openai|azure|aws|gcp)_?key)(_|$)"
    r"|(^|_)(hub|hf|auth|access|api|refresh|session|git\w*|user|login)_?tokens?(_|$)|^tokens?$",
    re.IGNORECASE,
)
# By name, where the value is a number.
NUMBER = re.compile(r"(^|_)(password|passwd|passphrase|pin_?code)$", re.IGNORECASE)
# By name, where it holds texts of its own.
HOLDER = re.compile(r"(^|_)(secrets?|passwords?|credentials|api_?keys|access_?keys|cookies)$|^(auth_?)?tokens$", re.I)
# By what they look like, whatever their name: of the Hub, of GitHub, of OpenAI, of Slack, of Google, of Amazon; a key
# in PEM; an address with a password.
VALUE = re.compile(
    r"(hf_|gh[pousr]_|github_pat_|sk-)[\w-]{20,}|xox[a-z]-[\w-]{8,}|AIza[\w-]{30,}|AKIA[0-9A-Z]{16}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|\b(?i:[a-z][a-z0-9+.-]*)://[^\s/@:]*:[^\s/@]+@"
)


def drop_credentials(path: Path) -> list[str]:
    """Leave out of a JSON file what looks like a credential; returns the names of what was left out."""
    if not path.is_file():
        return []
    values = json.loads(path.read_text(encoding="utf-8"))
    dropped: list[str] = []
    kept = _without(values, "", dropped)
    if dropped:
        path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return dropped


def _without(value: Any, name: str, dropped: list[str]) -> Any:
    if isinstance(value, dict):
        inner = {key: (f"{name}.{key}" if name else str(key), one) for key, one in value.items()}
        for key, (full, one) in inner.items():
            if _is_credential(str(key), one):
                dropped.append(full)
        return {key: _without(one, full, dropped) for key, (full, one) in inner.items() if full not in dropped}
    if isinstance(value, list):
        for index, one in enumerate(value):
            if _is_credential("", one):
                dropped.append(f"{name}[{index}]")
        return [_without(one, name, dropped) for one in value if not _is_credential("", one)]
    return value


def _is_credential(name: str, value: Any) -> bool:
    if isinstance(value, str):
        return bool(value and (NAME.search(name) or HOLDER.search(name) or VALUE.search(value)))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return bool(NUMBER.search(name))
    return bool(value) and isinstance(value, dict | list) and bool(HOLDER.search(name)) and _holds_text(value)


def _holds_text(value: Any) -> bool:
    """Whether a list or a mapping has a text in it; lists of token ids have none."""
    if isinstance(value, dict | list):
        return any(map(_holds_text, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str)
