"""A network with dropout on every hidden layer, audited in seconds: it leaks."""

import torch
from torch import nn

from privaudit import Auditor, Client
from privaudit._samples import load

torch.manual_seed(0)
model = nn.Sequential(
    nn.Flatten(),
    nn.Linear(3 * 32 * 32, 128),
    nn.GELU(),
    nn.Dropout(0.5),
    nn.Linear(128, 128),
    nn.GELU(),
    nn.Dropout(0.5),
    nn.Linear(128, 10),
)
images, labels = load(4, (32, 32)), [0, 1, 2, 3]  # your images, your classes

# Four clients with one image each: the worst case, and the usual one for small devices.
result = Auditor(model, client=Client(batch_size=1)).audit((images, labels))
print(result.verdict.line)
print("report:", result.save("privaudit-report") / "report.html")
