"""Record what a client sends while it trains, then attack it as the server would."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from privaudit import Auditor, Client, record_step
from privaudit._samples import load

torch.manual_seed(0)
model = nn.Sequential(
    nn.Flatten(),
    nn.Linear(3 * 32 * 32, 64),
    nn.GELU(),
    nn.Dropout(0.5),
    nn.Linear(64, 10),
)
server = copy.deepcopy(model)  # the weights that the server sent out

# The client's own training code, inside the block as it stands.
photo = load(1, (32, 32))[0]
image = torch.tensor(list(photo.tobytes())).view(1, 32, 32, 3).permute(0, 3, 1, 2) / 255
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with record_step(model) as step:
    optimizer.zero_grad()
    F.cross_entropy(model(image), torch.tensor([3])).backward()
    optimizer.step()
print("saved:", step.save("update.safetensors"))

# Elsewhere: the server knows its weights and the file, and not the image.
auditor = Auditor(server, client=Client(batch_size=1))
blind = auditor.attack_gradient("update.safetensors", batch_size=1)
print("without the image:", blind.verdict.line)
scored = auditor.attack_gradient("update.safetensors", batch_size=1, truth=(image, [3]))
print("with it:", scored.verdict.line)
