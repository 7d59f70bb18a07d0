"""One thread: the tests are many and small, and the machine is shared."""

import torch

torch.set_num_threads(1)
