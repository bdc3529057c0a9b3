file=@file@ key=@key@
mkdir -p "$(dirname "$file")"
echo "$key" >"$file"
