# The image's interpreter is new enough and has torch, in a container that can be killed; then that is noted.
. ../shell/checked.sh
. ../environment/torch.sh
set -eu
own=@own@ folder=@folder@ torch=@torch@ limit_s=@limit_s@
version_check='
import sys
if sys.version_info < (3, 9):
    sys.exit(f"python3 of the image is Python {sys.version.split()[0]}; 3.9 is needed")
'
missing=
[ "$torch" = false ] || missing='python3 of the image cannot import torch; name an image that has it'
cd /
checked "$own/env.sh" "the image's interpreter did not answer within $limit_s s" \
    timeout -k 10 "$limit_s" "$folder/python" -c "$version_check$torch_check" "$missing"
: >"$folder/checked"
