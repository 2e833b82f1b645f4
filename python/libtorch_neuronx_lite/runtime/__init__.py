# SPDX-License-Identifier: Apache-2.0
"""From an executable to a callable."""
