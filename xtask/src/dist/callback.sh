# Starts a server in a root folder, schedules a callback to the server's own receiver, and prints the log line about the
# callback. The script must run in its own network and process namespace, so that the kernel ends the server when the
# script ends. Arguments: USER:GROUP ROOT COMMAND...
set -eu
user=$1 root=$2
shift 2
inside=(chroot --userspec="$user" "$root")
log=$(mktemp)
trap 'rm -f "$log"' EXIT

await() {
    until grep -m 1 -e "$1" "$log"; do
        if ! kill -0 "$server" 2> /dev/null; then
            echo "the server ended without \`$1\`:" >&2
            cat "$log" >&2
            exit 1
        fi
        sleep 0.05
    done
}

ip link set lo up
# The shipped configuration starts no receiver. The variable REVEILLE_NO_RECEIVER overrides this setting.
REVEILLE_NO_RECEIVER=false "${inside[@]}" "$@" > "$log" 2>&1 &
server=$!
await ' ready ' > /dev/null
"${inside[@]}" "$1" schedule create --data /var/lib/reveille --in 2s --id order-17 \
    --url http://127.0.0.1:9000/hook --payload '{"order": 17}' > /dev/null
await '  order-17  attempt 1'
# After a clean stop, the server exits with status 0.
kill -TERM "$server"
wait "$server"
