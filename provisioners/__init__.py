"""spotsup: one module per cloud behind one small protocol (see base.py)."""
