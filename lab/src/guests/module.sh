#!/bin/busybox sh
# Init of a guest for modules: file systems and the control program.
/bin/busybox mkdir -p /proc /sys /dev /run/lab /tmp /sbin
/bin/busybox --install -s /bin
export PATH=/bin:/sbin HOME=/

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*.ko; do
    [ -e "$module" ] && insmod "$module"
done
# What moves pages shall be the module alone.
echo 0 >/proc/sys/kernel/numa_balancing

while :; do
    lab-host serve
    sleep 1
done
