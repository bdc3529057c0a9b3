set -- @logs@
for log; do
    [ ! -e "$log" ] || tail -n @lines@ "$log"
done
