# SPDX-License-Identifier: Apache-2.0
"""From a graph to an executable: targets, keys, compilers and the torch.compile backend."""
