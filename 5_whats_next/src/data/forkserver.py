"""What the forkserver imports before it forks the first worker; nobody else should import this."""

import signal

import src.data.usecase_cloud_dataset  # noqa: F401 - torch, xarray, zarr: what any worker needs

# A cluster's SIGTERM reaches all processes of a job. The training needs its workers for the step
# that it finishes, and PyTorch's workers end when the process that has forked them ends. It does so
# by itself, like the workers, when the training has ended. (Ctrl-C it ignores anyway.)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
