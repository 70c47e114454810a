"""A second S3 server, with several users, who have different rights, as in a cloud."""

import json
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from src.data.s3_server import OPTIONS, answers, free_ports

BUCKET = "cloud"
# What each may do: Read does not include List. The name is also the access key.
USERS = {"admin": ["Admin"], "reader": [f"Read:{BUCKET}"]}
ANONYMOUS = {"name": "anonymous", "actions": [f"Read:{BUCKET}"]}


def secret(name: str) -> str:
    return name[::-1]


@contextmanager
def strict_server(folder: Path) -> Iterator[tuple[str, str]]:
    """Its endpoint, and where all objects are without keys; killed at the end of the `with`."""
    identities = [
        {
            "name": name,
            "actions": actions,
            "credentials": [{"accessKey": name, "secretKey": secret(name)}],
        }
        for name, actions in USERS.items()
    ]
    users_file = folder / "identities.json"
    users_file.write_text(json.dumps({"identities": [*identities, ANONYMOUS]}))
    ports = free_ports()
    weed_file = f"{sysconfig.get_path('scripts')}/weed"
    command = [weed_file, "-logtostderr=true", "mini", *OPTIONS, f"-bucket={BUCKET}"]
    command += [f"-dir={folder}", f"-s3.config={users_file}"]
    command += [f"-{name}={port}" for name, port in ports.items()]
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    buckets = f"http://127.0.0.1:{ports['filer.port']}/buckets"
    with (folder / "server.log").open("wb") as log:
        environment = {"HOME": str(folder), "GOMEMLIMIT": "512MiB"}
        weed = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            while not (
                answers(f"{endpoint}/healthz") and answers(f"{buckets}/{BUCKET}/")
            ):
                assert weed.poll() is None, (folder / "server.log").read_text()
                time.sleep(0.05)
            yield endpoint, buckets
        finally:
            weed.kill()
            weed.wait()
