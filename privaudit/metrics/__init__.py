"""4 reconstruction and truth → score per image. One file and one line per metric."""

from privaudit._plugin import collect
from privaudit.metrics._token_base import TokenMetric as TokenMetric
from privaudit.metrics.base import Metric as Metric
from privaudit.metrics.dino import Dino as Dino
from privaudit.metrics.lpips import Lpips as Lpips
from privaudit.metrics.ms_ssim import MsSsim as MsSsim
from privaudit.metrics.mse import Mse as Mse
from privaudit.metrics.psnr import Psnr as Psnr
from privaudit.metrics.re_identification import ReIdentification as ReIdentification
from privaudit.metrics.ssim import Ssim as Ssim
from privaudit.metrics.token_accuracy import TokenAccuracy as TokenAccuracy
from privaudit.metrics.token_set_recall import TokenSetRecall as TokenSetRecall

METRICS = collect(Metric, globals())  # type: ignore[type-abstract]
TOKEN_METRICS = collect(TokenMetric, globals())  # type: ignore[type-abstract]
