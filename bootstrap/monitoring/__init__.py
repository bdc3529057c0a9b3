"""Exporters of metrics that the image brings."""
