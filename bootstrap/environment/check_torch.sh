# Looks for torch without importing it, which takes seconds.
cd /
exec @python@ -c 'import importlib.util, sys
if importlib.util.find_spec("torch") is None:
    sys.exit(f"{sys.executable} cannot import torch, although the line of setup has run")'
