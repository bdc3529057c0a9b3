# After the line of `setup`.
. ./torch.sh
cd /
python=@python@
exec "$python" -c "$torch_check" "$python cannot import torch, although the line of setup has run"
