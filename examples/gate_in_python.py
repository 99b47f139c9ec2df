"""A gate without the command line: result.passed() is true only if the gate exits 0."""

import torch
from torch import nn

from privaudit import Auditor, AuditResult, Client
from privaudit._samples import load

torch.manual_seed(0)
model = nn.Sequential(
    nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.GELU(), nn.Linear(64, 10)
)
result = Auditor(model, client=Client(batch_size=1)).audit((load(2, (32, 32)), [3, 7]))
result.save("privaudit-report")

# Later, elsewhere: neither the model nor a GPU is needed to judge a result again.
later = AuditResult.load("privaudit-report")
print(later.verdict.line)
print("passes at SSIM 0.5:", later.passed(max_ssim=0.5))
print("worst:", later.worst["ssim"].value, "on image", later.worst["ssim"].sample)
for cause in later.verdict.causes:
    print(cause.text, "-", cause.remedy)
