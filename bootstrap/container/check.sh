# The image's interpreter is new enough and has torch, in a container that can be killed; then that is noted.
set -eu
own=@own@ folder=@folder@ torch=@torch@ limit_s=@limit_s@
program='
import importlib.util, sys
if sys.version_info < (3, 11):
    sys.exit(f"python3 of the image is Python {sys.version.split()[0]}; 3.11 is needed")
if sys.argv[1] == "true" and importlib.util.find_spec("torch") is None:
    sys.exit("python3 of the image cannot import torch; name an image that has it")
'
cd /
status=0
(
    set -- timeout -k 10 "$limit_s" "$folder/python" -c "$program" "$torch"
    # shellcheck source=/dev/null
    . "$own/env.sh"
    exec "$@"
) </dev/null >&2 || status=$?
[ "$status" -ne 124 ] || echo "the image's interpreter did not answer within $limit_s s" >&2
[ "$status" -eq 0 ] || exit "$status"
: >"$folder/checked"
