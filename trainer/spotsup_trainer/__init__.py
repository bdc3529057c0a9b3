"""What runs on a node of a spotsup job. Pure Python; torch is imported only by the modules that need it."""

__version__ = "0.1.0"
