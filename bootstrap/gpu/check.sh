# The job's interpreter computes on each GPU, in a process that can be killed. The sum is exact in float32, and in TF32
# too: all are powers of two.
. ../shell/checked.sh
set -eu
own=@own@ python=@python@ gpus=@gpus@ limit_s=@limit_s@ checked=@checked@ key=@key@
program='
import sys
try:
    import torch
except Exception as error:
    sys.exit(f"{sys.executable} cannot import torch: {error}")
def wrong(said):
    print(f"torch {torch.__version__} {said}", file=sys.stderr)
    sys.exit(65)
if torch.version.cuda is None:
    wrong("was built without CUDA: install a build with CUDA, by setup or in the image")
built, driver = int(torch.version.cuda.partition(".")[0]), getattr(torch._C, "_cuda_getDriverVersion", int)() // 1000
if 0 < driver < built:
    wrong(
        f"was built for CUDA {torch.version.cuda}, and the driver of this machine is for CUDA {driver}: "
        f"take a torch for CUDA {driver} (the index of PyTorch has one), or an image with a newer driver"
    )
try:
    found = torch.cuda.device_count()
    torch.cuda.init()
    if found < int(sys.argv[1]):
        sys.exit(f"torch finds {found} GPUs, {sys.argv[1]} should be here: is CUDA_VISIBLE_DEVICES set?")
    for index in range(found):
        ones = torch.ones(1024, 1024, device=f"cuda:{index}")
        total = float((ones @ ones).sum())
        if total != 1024.0**3:
            sys.exit(f"GPU {index} ({torch.cuda.get_device_name(index)}) computes wrongly: {total} for {1024.0**3}")
except Exception as error:
    first = (str(error).splitlines() or [type(error).__name__])[0]
    if "system not yet initialized" in str(error):
        first = (
            "CUDA error 802, the NVSwitches are not set up: journalctl -u nvidia-fabricmanager on the machine says why; "
            "the fabric manager needs the version of the driver, and on B200 and B300 nvlsm"
        )
    sys.exit(f"torch {torch.__version__} (CUDA {torch.version.cuda}) cannot compute on the GPUs: {first}")
'
cd /
checked "$own/env.sh" "computing on the GPUs did not end within $limit_s s: one of them hangs" \
    timeout -k 10 "$limit_s" "$python" -c "$program" "$gpus"
echo "$key" >"$own/$checked.new"
mv "$own/$checked.new" "$own/$checked"
