# The image's interpreter is new enough and has torch, in a container that can be killed; then that is noted.
. ../shell/checked.sh
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
checked "$own/env.sh" "the image's interpreter did not answer within $limit_s s" \
    timeout -k 10 "$limit_s" "$folder/python" -c "$program" "$torch"
: >"$folder/checked"
