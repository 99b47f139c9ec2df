"""4 reconstruction and truth → score per image. One file and one line per metric."""

from privaudit._plugin import collect
from privaudit.metrics.base import Metric as Metric
from privaudit.metrics.mse import Mse as Mse
from privaudit.metrics.psnr import Psnr as Psnr
from privaudit.metrics.re_identification import ReIdentification as ReIdentification
from privaudit.metrics.ssim import Ssim as Ssim

METRICS = collect(Metric, globals())  # type: ignore[type-abstract]
