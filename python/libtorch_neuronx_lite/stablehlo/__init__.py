# SPDX-License-Identifier: Apache-2.0
"""FX to StableHLO: the import in this process, the pass pipelines in a worker."""
