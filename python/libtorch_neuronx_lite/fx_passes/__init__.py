# SPDX-License-Identifier: Apache-2.0
"""Graph in, graph out: what an AOTAutograd inference graph goes through before it is lowered. Never torch_mlir."""
