#!/bin/busybox sh
# Init of L1: file systems, KVM, the control program, a shell for people.
/bin/busybox mkdir -p /proc /sys /dev /run /tmp /root /sbin /usr/sbin
/bin/busybox --install -s /bin
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/root

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
# Guest RAM lives here; a file's pages are where its user asks for them, on either node.
mount -t tmpfs -o size=90% shm /dev/shm
mkdir -p /dev/shm/huge
mount -t tmpfs -o size=90%,huge=always huge /dev/shm/huge
mount -t tmpfs run /run
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t tracefs trace /sys/kernel/tracing
mkdir -p /run/terrace/qmp /run/lab
ip link set lo up
hostname lab

for module in irqbypass kvm kvm-amd; do
    insmod "/lib/modules/$module.ko" || echo "l1-init: $module does not load" >/dev/console
done

(while :; do lab-host serve; sleep 1; done) >/run/lab/serve.log 2>&1 &
echo "l1-init: ready" >/dev/console

while :; do
    setsid -c sh -l </dev/hvc0 >/dev/hvc0 2>&1
    sleep 1
done
