# An exporter that fails logs the reason itself, and is not tried again: a node without metrics still trains.
set -- @units@
for unit; do
    systemctl enable --now "$unit" || :
done
