# SPDX-License-Identifier: Apache-2.0
"""The `neuron-lite` command. Each subcommand imports what it needs when it runs."""
