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
    exported = "einops==0.8.2 ; python_version > '3' \\\n    --hash=sha256:11\n"
    assert portable_lock.problems(PORTABLE, exported, "einops==0.8.2\n") == []
    (problem,) = portable_lock.problems(
        PORTABLE, exported + "-i https://a.example", exported
    )
    assert "address" in problem
    (problem,) = portable_lock.problems(PORTABLE, exported, "einops==0.8.1\n")
    assert "not uv.lock's: einops==0.8.1, einops==0.8.2" in problem
    changed = exported.replace("11", "22")
    (problem,) = portable_lock.problems(PORTABLE, exported, changed)
    assert "nobody locked: --hash=sha256:22" in problem
    assert (
        "as uv wrote it"
        in portable_lock.problems(AS_UV_WRITES_IT, exported, exported)[0]
    )
