# SPDX-License-Identifier: Apache-2.0
"""Loggers of this package: one root, `libtorch_neuronx_lite`, whose level follows NEURON_LIBTORCH_LOG_LEVEL."""

from __future__ import annotations

import logging

from . import envs

_ROOT = "libtorch_neuronx_lite"


def get_logger(name: str) -> logging.Logger:
    """Return the logger for a module; `name` is its `__name__`.

    The root's level is set from the environment the first time, and only when the application has not set one.
    """
    root = logging.getLogger(_ROOT)
    if root.level == logging.NOTSET:
        root.setLevel(envs.NEURON_LIBTORCH_LOG_LEVEL)
    return logging.getLogger(name)
