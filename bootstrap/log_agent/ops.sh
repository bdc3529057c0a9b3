# Installs Google's Ops Agent, if it is missing, and configures it.
export DEBIAN_FRONTEND=noninteractive
text=@config@
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
config=/etc/google-cloud-ops-agent/config.yaml
if [ ! -d /etc/google-cloud-ops-agent ]; then
    curl -fsS --retry 3 --max-time 60 -o "$work/add.sh" \
        https://dl.google.com/cloudagents/add-google-cloud-ops-agent-repo.sh
    bash "$work/add.sh" --also-install >/dev/null
fi
printf %s "$text" >"$config"
systemctl restart google-cloud-ops-agent
