"""What happens around a Lightning training: a file for each callback, usable with any module."""

from src.callbacks.cloud_upload import CloudUploadCallback
from src.callbacks.device_hours import DeviceHours
from src.callbacks.loader_report import LoaderReport
from src.callbacks.report import Report
from src.callbacks.stop_and_save import StopAndSave

__all__ = [
    "CloudUploadCallback",
    "DeviceHours",
    "LoaderReport",
    "Report",
    "StopAndSave",
]
