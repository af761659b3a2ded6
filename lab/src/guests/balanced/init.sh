#!/bin/busybox sh
# Init of a guest with a balloon and a swap device: file systems and the control program.
/bin/busybox mkdir -p /proc /sys /dev /run/lab /tmp /sbin
/bin/busybox --install -s /bin
export PATH=/bin:/sbin HOME=/

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
insmod /virtio_blk.ko
insmod /virtio_balloon.ko
insmod /virtio_mem.ko
until [ -b /dev/vda ]; do sleep 1; done
swapon /dev/vda

while :; do
    lab-host serve
    sleep 1
done
