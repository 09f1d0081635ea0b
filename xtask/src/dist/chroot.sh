# Script for `bash` as root, in a mount namespace of its own: installs the .deb in the Debian system $1, profiles a process
# there, and removes the package.
#
# $1: root of the system, $2: the .deb
root=$1
deb=$2

for folder in proc sys dev; do
    mount --rbind "/$folder" "$root/$folder"
done
cp "$deb" "$root/tmp/heapbpf.deb"
cd /

within() {
    LC_ALL=C.UTF-8 chroot "$root" "$@"
}

echo "== install"
within dpkg --install /tmp/heapbpf.deb
within dpkg --verify heapbpf
within dpkg --listfiles heapbpf

echo "== run"
within heapbpf --version
within heapbpf doctor
within zcat /usr/share/man/man1/heapbpf.1.gz | head -n 4
test -s "$root/usr/lib/systemd/system/heapbpf@.service"
test -s "$root/usr/lib/systemd/system/heapbpf-agent.service"
within heapbpf agent --config /etc/heapbpf/agent.toml --check
grep --quiet CDDL "$root/usr/share/doc/heapbpf/copyright"

echo "== record"
# A thousand strings of 1 KiB a second, which stay referenced. Not by `within`, so that the ID is that of perl.
LC_ALL=C.UTF-8 chroot "$root" perl -e 'while (1) { push @kept, "x" x 1024; select undef, undef, undef, 0.001 }' &
leaky=$!
trap 'kill -KILL "$leaky"' EXIT
sleep 1
code=0
within heapbpf record --pid "$leaky" --duration 3s --interval 1 -o /tmp/heap.json -o /tmp/heap.html -o /tmp/heap.svg || code=$?
# 3: the profile is incomplete beyond the thresholds, for example because the machine is busy.
[ "$code" = 0 ] || [ "$code" = 3 ]
kill -KILL "$leaky"
trap - EXIT

echo "== remove"
within dpkg --purge heapbpf
for left in usr/bin/heapbpf usr/share/doc/heapbpf usr/share/man/man1/heapbpf.1.gz usr/lib/systemd/system/heapbpf@.service \
    usr/lib/systemd/system/heapbpf-agent.service etc/heapbpf; do
    if [ -e "$root/$left" ]; then
        echo "the package left $left behind" >&2
        exit 1
    fi
done
