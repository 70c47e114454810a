"""The lock works with any index, because it names none."""

import portable_lock

AS_UV_WRITES_IT = """\
version = 1
revision = 5

[options]
exclude-newer-span = "P7D"

[[package]]
name = "einops"
version = "0.8.2"
source = { registry = "https://mirror.example/simple" }
sdist = { url = "https://mirror.example/einops-0.8.2.tar.gz", hash = "sha256:00", size = 1 }
wheels = [
    { url = "https://mirror.example/einops-0.8.2-py3-none-any.whl", hash = "sha256:11", size = 2 },
]

[package.metadata]
requires-dist = [{ name = "einops", specifier = ">=0.8" }]

[package.metadata.requires-dev]
dev = []
"""

PORTABLE = """\
version = 1
revision = 5

[options]
exclude-newer-span = "P7D"

[[package]]
name = "einops"
version = "0.8.2"
source = { registry = "index" }

"""


def test_keeps_versions_and_markers_only():
    assert portable_lock.portable(AS_UV_WRITES_IT) == PORTABLE
    assert portable_lock.portable(PORTABLE) == PORTABLE


def test_check_finds_what_is_not_portable():
    ours = "einops==0.8.2 ; python_version > '3' \\\n    --hash=sha256:11\n"
    assert portable_lock.problems(PORTABLE, ours, ours) == []
    for lock, requirements, exported in (
        (AS_UV_WRITES_IT.replace("https://", ""), ours, ours),
        (PORTABLE, ours + "-i https://a.example", ours),
        (PORTABLE, ours, ours.replace("0.8.2", "0.8.1")),
        (PORTABLE, ours, ours.replace("11", "22")),  # another file of this name
    ):
        assert len(portable_lock.problems(lock, requirements, exported)) == 1
