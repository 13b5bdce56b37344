"""Names for the array types that this package speaks in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F8 = NDArray[np.float64]
I8 = NDArray[np.int64]
Bools = NDArray[np.bool_]
