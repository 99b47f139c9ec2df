"""The models of Scheliga 2023, which the package carries for `privaudit reproduce`."""

from privaudit.study.dia_models import ViT as ViT
from privaudit.study.dia_models import lenet as lenet
from privaudit.study.dia_models import mlp as mlp
from privaudit.study.dia_models import resnet18 as resnet18
