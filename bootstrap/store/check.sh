# One write, one read and one deletion where the job's checkpoints go, by the interpreter that trains.
. ../shell/checked.sh
set -eu
own=@own@ prepared=@prepared@ marker=@marker@ python=@python@ trainer=@trainer@ url=@url@ limit_s=@limit_s@
program='
import sys
sys.path.insert(0, sys.argv[1])
from spotsup_trainer.objects.check import main
main(sys.argv[2], sys.argv[3])
'
cd /
checked "$own/env.sh" "$url did not answer within $limit_s s: does the node reach the internet, or an endpoint of the store?" \
    timeout -k 10 "$limit_s" "$python" -c "$program" "$trainer" "$url" @node@
mkdir -p "$prepared"
: >"$prepared/$marker"
