"""What happens around a training, a file each."""

from src.callbacks.cloud_upload import CloudUploadCallback

__all__ = ["CloudUploadCallback"]
