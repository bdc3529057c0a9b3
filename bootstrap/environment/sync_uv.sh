# PYTHON VENV FILE UV: an environment from uv.lock, by uv.
set -eux
export UV_PROJECT_ENVIRONMENT="$2"
exec "$4" sync --frozen --no-dev --no-install-project --python "$1"
