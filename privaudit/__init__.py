"""privaudit: does your PyTorch model give its training images away?"""

__version__ = "0.1.0"
