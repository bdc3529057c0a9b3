# Installs Amazon's CloudWatch agent, if it is missing, and configures it.
export DEBIAN_FRONTEND=noninteractive
os=@os@ text=@config@
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ctl=/opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl
config=/opt/aws/amazon-cloudwatch-agent/etc/spotsup.json
if [ ! -x "$ctl" ]; then
    curl -fsS --retry 3 --max-time 120 -o "$work/agent.deb" \
        "https://amazoncloudwatch-agent.s3.amazonaws.com/$os/amd64/latest/amazon-cloudwatch-agent.deb"
    apt-get -q -y -o DPkg::Lock::Timeout=120 install "$work/agent.deb" >/dev/null
fi
printf %s "$text" >"$config"
"$ctl" -a fetch-config -m ec2 -s -c "file:$config" >/dev/null
