"""Tells a wornpath router what an engine has cached."""

from .block_pool import watch_block_pool
from .reporter import Reporter

__all__ = ["Reporter", "watch_block_pool"]
