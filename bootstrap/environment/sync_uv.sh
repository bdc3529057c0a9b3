# PYTHON VENV FILE UV...: an environment from uv.lock, by uv.
set -eux
python=$1 venv=$2
shift 3
export UV_PROJECT_ENVIRONMENT="$venv"
"$@" sync --frozen --no-dev --no-install-project --python "$python"
