#!/bin/sh
. ./interpreter.sh
for _name in $_names; do eval "export APPTAINERENV_$_name=\"\$$_name\""; done
exec @apptainer@ exec --pid --cleanenv --home "$_own/home" --pwd "$PWD" \
    @options@ @sif@ python3 "$@"
