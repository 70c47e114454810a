"""What happens around a Lightning training: a file for each callback, usable with any module."""

from src.callbacks.report import Report
from src.callbacks.stop_and_save import StopAndSave

__all__ = ["Report", "StopAndSave"]
