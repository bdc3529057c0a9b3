# Reads one key of etcd, as the agent will. On failure stderr says why, and what to do.
PYTHONPATH=@trainer@
export PYTHONPATH
exec @python@ -m spotsup_trainer.etcd.reach @arguments@ </dev/null
