#!/bin/busybox sh
# Init of a guest with a node per tier: file systems and the control program.
/bin/busybox mkdir -p /proc /sys /dev /run/lab /tmp /sbin
/bin/busybox --install -s /bin
export PATH=/bin:/sbin HOME=/

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
# What moves pages shall be the resizing alone.
echo 0 >/proc/sys/kernel/numa_balancing
for node in 0 1; do
    mkdir -p /node$node
    # As large as the node may become.
    mount -t tmpfs -o size=2G,mpol=bind:$node node$node /node$node
done

while :; do
    lab-host serve
    sleep 1
done
