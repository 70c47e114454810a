"""A copy in the cloud that outlives a kill between any two requests.

``upload`` puts a checkpoint into the storage, then latest.json, which says what is there. A machine
that takes the run over goes on from the newest object in that list whose SHA-256 is the right one.
Each request is whole or not at all. But the process may be killed between two of them, an object
may arrive damaged, and a run that was killed may train the same step once more, to other weights.

At each moment the list shall name nothing but whole objects; at the end it names the last KEEP
uploads. Objects that it names no more are deleted, those of others stay. If an upload has failed,
raise an error. storage has put(name, content), get(name) (None if nothing is there), names() and
delete(name); contents are bytes.
"""

import hashlib
import json
from typing import Any

KEEP = 2


def upload(storage: Any, content: bytes, step: int) -> None:
    """Put a checkpoint into the storage."""
    storage.put("last.ckpt", content)
    new = {"object": "last.ckpt", "step": step, "sha256": hashlib.sha256(content).hexdigest()}
    storage.put("latest.json", json.dumps({"kept": [new]}).encode())
