# PYTHON VENV FILE UV: an environment from a requirements file, by uv. With pip where that can be had, for `setup`.
set -eux
python=$1 venv=$2 file=$3 uv=$4
set --
[ -z "${PIP_NO_INDEX-}" ] || set -- --no-index
"$uv" venv --python "$python" --seed "$@" "$venv" || "$uv" venv --python "$python" --clear "$venv"
"$uv" pip install --python "$venv/bin/python" "$@" -r "$file"
