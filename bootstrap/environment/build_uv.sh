# PYTHON VENV FILE UV...: an environment from a requirements file, by uv.
set -eux
python=$1 venv=$2 file=$3
shift 3
"$@" venv --python "$python" "$venv"
"$@" pip install --python "$venv/bin/python" -r "$file"
