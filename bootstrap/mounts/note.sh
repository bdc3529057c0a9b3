# Notes what is mounted, and what was proven of it.
own=@own@ proof=@proof@ key=@key@
mkdir -p "$own"
echo "$key" >"$proof.new"
mv "$proof.new" "$proof"
