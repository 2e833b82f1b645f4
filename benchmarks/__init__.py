# SPDX-License-Identifier: Apache-2.0
"""Measurements, each beside a peer in the same run: `python -m benchmarks.NAME [--json]`."""
