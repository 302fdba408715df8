"""Training data as files, stores and tensors."""

from . import converter as converter
from . import dmabuf as dmabuf
from . import dtypes as dtypes
from . import sampler as sampler
from . import store as store
from . import torch as torch
from ._errors import StoreError as StoreError
from ._native import Allocation as Allocation
from ._native import Allocator as Allocator
from ._native import TokenBatch as TokenBatch
from ._native import __version__ as __version__
from .daemon import mount as mount
from .loader import Loader as Loader
from .mounted import Dataset as Dataset
from .mounted import open as open
from .tokens import TokenLoader as TokenLoader
from .tokens import merge as merge

__all__ = [
    "Allocation",
    "Allocator",
    "Dataset",
    "Loader",
    "StoreError",
    "TokenBatch",
    "TokenLoader",
    "__version__",
    "converter",
    "dmabuf",
    "dtypes",
    "merge",
    "mount",
    "open",
    "sampler",
    "store",
    "torch",
]
