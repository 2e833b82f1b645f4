# SPDX-License-Identifier: Apache-2.0
"""`python -m libtorch_neuronx_lite.cli` is `neuron-lite`, for an environment whose bin folder is not on PATH."""

import sys

from .main import main

sys.exit(main())
