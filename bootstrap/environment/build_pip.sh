# PYTHON VENV FILE: an environment from a requirements file, by pip.
set -eux
"$1" -m venv "$2"
"$2/bin/python" -m pip install --no-input --disable-pip-version-check -r "$3"
