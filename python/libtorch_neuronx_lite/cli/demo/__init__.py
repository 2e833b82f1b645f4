# SPDX-License-Identifier: Apache-2.0
"""`neuron-lite demo`: a real language model on a neuron core, checked against CPU eager.

`model` loads it, `generation` runs it, `check` compares it, `report` says so, `command` joins them.
"""
