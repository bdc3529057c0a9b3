# Whether torch is there, and new enough, without importing it, which takes seconds. Its argument: what to say where it
# is missing; "" where it may be.
# shellcheck disable=SC2034 # for the script that includes this
torch_check='
import importlib.util, re, sys
if sys.argv[1]:
    if importlib.util.find_spec("torch") is None:
        print(sys.argv[1], file=sys.stderr)
        sys.exit(65)
    from importlib import metadata
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        version = ""
    found = re.match(r"(\d+)[.](\d+)", version)
    if found and (int(found.group(1)), int(found.group(2))) < (2, 6):
        print("torch %s is not supported: spotsup needs 2.6 or newer" % version, file=sys.stderr)
        sys.exit(65)
'
