# SPDX-License-Identifier: Apache-2.0
"""PyTorch on AWS Trainium: the `neuron` device, a torch.compile backend to NEFF, and a runtime."""
